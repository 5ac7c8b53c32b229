"""Turns our command-line words into ms-swift's: `--plugin NAME` into `--external_plugins FILE --callbacks NAME`, and
`--diloco_*` flags out of the command line.

Pure: knows no environment, no file and no installed package. Invariant: `translate` of its own result changes nothing,
and words that are not ours keep their order and spelling.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.island_settings import FLAG_PREFIX, ISLAND_FIELDS

PLUGIN = "plugin"
EXTERNAL_PLUGINS = "external_plugins"
CALLBACKS = "callbacks"
SETTING_PREFIX = "diloco_"
NOT_GIVEN = "None"
"""How ms-swift writes a YAML null on the command line."""

_FLAG = re.compile(r"-{1,2}[A-Za-z][\w-]*(=.*)?", re.DOTALL)


class Group(msgspec.Struct, frozen=True):
    """A flag with the values that follow it; the name is without dashes, and empty before the first flag."""

    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]


class Request(msgspec.Struct, frozen=True):
    """What a command line asks of us: plugins by name, settings by name, and all the other words."""

    plugins: tuple[str, ...]
    settings: Mapping[str, str]
    rest: tuple[Group, ...]


def is_flag(word: str) -> bool:
    """Whether a word is a flag; `--min-islands 2` as one word is a value, and so is `-1`."""
    return _FLAG.fullmatch(word) is not None


def group(argv: Sequence[str]) -> list[Group]:
    """Cut a command line into flags with their values."""
    groups: list[Group] = []
    for word in argv:
        if is_flag(word):
            spelt, equals, value = word.partition("=")
            name = spelt.lstrip("-").replace("-", "_")
            groups.append(Group(name=name, values=(value,) if equals else (), words=(word,)))
        else:
            last = groups.pop() if groups else Group(name="", values=(), words=())
            groups.append(Group(name=last.name, values=(*last.values, word), words=(*last.words, word)))
    return groups


def read_request(argv: Sequence[str]) -> Request:
    """Find our words in a command line."""
    plugins: list[str] = []
    settings: dict[str, str] = {}
    rest: list[Group] = []
    for each in group(argv):
        if each.name == PLUGIN:
            plugins += _plugin_names(each)
        elif each.name.startswith(SETTING_PREFIX):
            name = each.name.removeprefix(SETTING_PREFIX)
            value = _setting_value(name, each.values)
            if value != NOT_GIVEN:
                settings[name] = value
        else:
            rest.append(each)
    return Request(plugins=tuple(dict.fromkeys(plugins)), settings=settings, rest=tuple(rest))


def translate(request: Request, files: Sequence[str], callbacks: Sequence[str]) -> list[str]:
    """The command line for ms-swift: the user's own plugin files and callbacks, then ours, none of them twice."""
    added = {EXTERNAL_PLUGINS: files, CALLBACKS: callbacks}
    merged = {name: list(values) for name, values in added.items() if values}
    for each in request.rest:
        # Like argparse, the last occurrence of a flag is the one that counts.
        if each.name in merged:
            merged[each.name] = list(dict.fromkeys((*each.values, *added[each.name])))
    words = [word for each in request.rest if each.name not in merged for word in each.words]
    for name, values in merged.items():
        words += [f"--{name}", *values]
    return words


def _plugin_names(given: Group) -> list[str]:
    """Names after one `--plugin`, separated by commas or spaces."""
    names = [name for value in given.values for name in value.split(",") if name and name != NOT_GIVEN]
    if not names and NOT_GIVEN not in given.values:
        raise UserError("--plugin is given without a name; expected for example --plugin diloco")
    return names


def _setting_value(name: str, values: tuple[str, ...]) -> str:
    """The one value of a `--diloco_*` flag. A truth value may stand without one; a wrong name is refused later."""
    field = ISLAND_FIELDS.get(name)
    if not values and field is not None and field.kind is bool:
        return "true"
    if len(values) != 1 and field is not None:
        found = f"{len(values)} values ({' '.join(values)})" if values else "none"
        raise UserError(f"{FLAG_PREFIX}{name} takes one value, found {found}; expected {field.expected}")
    return " ".join(values)
