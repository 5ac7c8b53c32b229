"""Preset files: YAML with an `island:` and a `syncer:` section.

Knows where the shipped presets lie and how a preset is read; what its keys mean is the schemas' matter.

Invariant: the sections of a `Preset` hold scalars only.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.schema import SettingValue, nearest

SECTIONS = ("island", "syncer")
PRESET_BYTES_MAX = 1 << 20
"""A preset is a page of text; a larger file is something else given by mistake."""


class Preset(msgspec.Struct, frozen=True):
    """What a preset file says, per process."""

    source: str = "no preset"
    island: Mapping[str, SettingValue] = {}
    syncer: Mapping[str, SettingValue] = {}


NO_PRESET = Preset()


def shipped_folder() -> Path:
    """Where the shipped presets lie: inside the package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def shipped_names() -> list[str]:
    """Names of the shipped presets, without `.yaml`."""
    return sorted(path.stem for path in shipped_folder().glob("*.yaml"))


def find_preset(name_or_path: str) -> Path:
    """The file a user means by a preset's name or path; a name never means a file in the working folder."""
    if "/" not in name_or_path and not name_or_path.endswith((".yaml", ".yml")):
        if name_or_path in shipped_names():
            return shipped_folder() / f"{name_or_path}.yaml"
        near = nearest(name_or_path, shipped_names())
        raise UserError(
            f"no preset is named {name_or_path!r}, the nearest is {near} (shipped: {', '.join(shipped_names())}); "
            "a file of your own is given by a path that ends in .yaml"
        )
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    shipped = shipped_folder() / name_or_path
    if path.name == name_or_path and shipped.is_file():
        return shipped
    raise UserError(f"preset file {name_or_path} does not exist (looked in {Path.cwd()})")


def load_preset(name_or_path: str) -> Preset:
    """Read a preset; an empty name is no preset."""
    if not name_or_path:
        return NO_PRESET
    path = find_preset(name_or_path)
    if path.stat().st_size > PRESET_BYTES_MAX:
        raise UserError(f"preset {path} has {path.stat().st_size} bytes; at most {PRESET_BYTES_MAX} are read")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"preset {path} cannot be read as YAML: {error}") from error
    return _checked(content, str(path))


def _checked(content: object, source: str) -> Preset:
    """Check the shape of a preset: the two sections, each a mapping of names to scalars."""
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UserError(f"preset {source} must be a mapping with the sections island: and syncer:")
    for section, values in content.items():
        if section not in SECTIONS:
            near = nearest(str(section), SECTIONS)
            raise UserError(f"preset {source} has a section {section}:; expected island: or syncer: (nearest: {near}:)")
        if values is not None and not isinstance(values, dict):
            raise UserError(f"section {section}: of preset {source} must be a mapping of settings to values")
        for name, value in (values or {}).items():
            if not isinstance(name, str) or not isinstance(value, int | float | str):
                raise UserError(f"{section}.{name} of preset {source} is {value!r}; expected one plain value")
    return Preset(source=source, island=content.get("island") or {}, syncer=content.get("syncer") or {})
