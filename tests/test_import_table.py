"""Who may import whom. The rules are folders', and the table of imports is read from the tree."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import swift_diloco
from tests.walls import (
    OUTSIDE,
    Arrow,
    Module,
    Rule,
    circles,
    concrete,
    doors,
    forbids,
    matched,
    matches,
    names_in,
    offences,
    reached_from,
    read_module,
    read_tree,
)

ROOT = Path(swift_diloco.__file__).resolve().parents[1]
TABLE = read_tree(ROOT, "swift_diloco", "syncer")

PLAIN = "__future__ bisect collections contextlib dataclasses enum functools heapq itertools math re typing msgspec"
"""What pure code needs from outside: no clock, file, socket, thread, logger or chance, no arrays and no compiler."""

SHELL_OF_CORE = (
    "swift_diloco.core.numbers swift_diloco.core.files swift_diloco.core.command_line "
    "swift_diloco.core.settings.presets"
)
"""What of the core computes, touches files or reads a command line."""

COMPUTES = f"{PLAIN} numpy concurrent threading weakref"
"""What numbers need from outside: arrays, pools of threads for arithmetic, locks and ends of life of buffers. Besides,
buffers lie in messages of ZeroMQ, and a merge says how long it took."""

TRAINERS = "megatron swift mcore_bridge transformer_engine"
MODELS = "transformers peft accelerate tokenizers datasets modelscope"

HOUSES = "swift_diloco swift_diloco.island syncer"
"""Folders of rooms. What lies in them beside the rooms is for a rule too, each by its name."""

BRAINS = (
    "swift_diloco.island.brain syncer.brain swift_diloco.island.events swift_diloco.island.remembered syncer.events"
)
PURE = f"{BRAINS} swift_diloco.core.formats swift_diloco.core.layout swift_diloco.core.story"

RULES = {
    # Between the packages.
    "the core knows nobody": Rule("swift_diloco.core", "swift_diloco.* syncer"),
    "the syncer knows the core only": Rule("syncer", "swift_diloco.*", but="swift_diloco.core"),
    "only simulated worlds know both houses": Rule("swift_diloco", "syncer", unless="swift_diloco.simulate"),
    "an island knows the core only": Rule("swift_diloco.island", "swift_diloco.*", but="swift_diloco.core"),
    "trainers know islands": Rule(
        "swift_diloco.trainers", "swift_diloco.*", but="swift_diloco.core swift_diloco.island swift_diloco.cpu"
    ),
    "the start knows trainers": Rule(
        "swift_diloco.launch", "swift_diloco.*", but="swift_diloco.core swift_diloco.trainers swift_diloco.cpu"
    ),
    "the CPU platform knows nothing of DiLoCo": Rule("swift_diloco.cpu", "swift_diloco.*", but="swift_diloco.core"),
    "charts know nothing": Rule("swift_diloco.charts", f"swift_diloco.* {OUTSIDE}", but=f"{PLAIN} html"),
    "a tool runs on core, islands and charts": Rule(
        "swift_diloco.tools", "swift_diloco.*", but="swift_diloco.core swift_diloco.island swift_diloco.charts"
    ),
    "a tool knows no other tool": Rule("swift_diloco.tools.*", "swift_diloco.tools.*"),
    "a world takes the brains only": Rule(
        "swift_diloco.simulate", "swift_diloco.* syncer.*",
        but="swift_diloco.core swift_diloco.island.brain swift_diloco.island.events swift_diloco.island.remembered "
        "syncer.brain syncer.events",
    ),
    "nobody knows tools and worlds, the door their names only": Rule(
        "swift_diloco syncer", "swift_diloco.tools swift_diloco.simulate"
    ),
    "the door knows the core only": Rule("swift_diloco.cli", "swift_diloco.*", but="swift_diloco.core"),
    "nobody knows the door": Rule(
        "swift_diloco syncer", "swift_diloco.cli syncer.cli", unless="swift_diloco.__main__ syncer.__main__"
    ),
    "a start knows its door": Rule(
        "swift_diloco.__main__ syncer.__main__", "swift_diloco.* syncer.*", but="swift_diloco.cli syncer.cli"
    ),
    "nobody knows a start or the bench": Rule(
        "swift_diloco syncer", "swift_diloco.__main__ syncer.__main__ syncer.bench"
    ),
    "only the syncer's door knows its shell": Rule("syncer", "syncer.server syncer.checks", unless="syncer.cli"),
    "an island is its performer's door": Rule(
        "swift_diloco", "swift_diloco.island.performer", unless="swift_diloco.island.island swift_diloco.tools.bench"
    ),
    # Between the rooms of both houses. Brains decide, links move, numbers compute, files keep; events are the wall.
    "the island's brain is pure": Rule(
        "swift_diloco.island.brain", f"swift_diloco.island.* {SHELL_OF_CORE} {OUTSIDE}",
        but=f"swift_diloco.island.events swift_diloco.island.remembered {PLAIN}",
    ),
    "the syncer's brain is pure": Rule(
        "syncer.brain", f"syncer.* {SHELL_OF_CORE} {OUTSIDE}", but=f"syncer.events {PLAIN}"
    ),
    "events know no room": Rule(
        "swift_diloco.island.events swift_diloco.island.remembered syncer.events",
        f"swift_diloco.island.* syncer.* {SHELL_OF_CORE} {OUTSIDE}", but=PLAIN,
    ),
    "memory knows no rule": Rule("syncer.brain.memory", "syncer.brain.*"),
    "rules know memory": Rule("syncer.brain.rules", "syncer.brain.*", but="syncer.brain.memory"),
    "the island's links decide nothing": Rule(
        "swift_diloco.island.links", "swift_diloco.island.*", but="swift_diloco.island.numbers"
    ),
    "the syncer's links decide nothing": Rule("syncer.links", "syncer.*", but="syncer.events syncer.numbers"),
    "the island's numbers only compute": Rule(
        "swift_diloco.island.numbers", f"swift_diloco.island.* {OUTSIDE}",
        but=f"swift_diloco.island.events {COMPUTES} torch",
    ),
    "the syncer's numbers only compute": Rule(
        "syncer.numbers", f"syncer.* {OUTSIDE}", but=f"syncer.events {COMPUTES}"
    ),
    "the island's files only keep": Rule(
        "swift_diloco.island.files", "swift_diloco.island.*",
        but="swift_diloco.island.remembered swift_diloco.island.numbers swift_diloco.island.ranks",
    ),
    "the syncer's files only keep": Rule("syncer.files", "syncer.*", but="syncer.events syncer.links syncer.numbers"),
    "ranks know nothing of what they agree on": Rule("swift_diloco.island.ranks", "swift_diloco.island.*"),
    "checks know what a checkpoint says": Rule("syncer.checks", "syncer.*", but="syncer.brain.memory"),
    "the bench knows the brain": Rule("syncer.bench", "syncer.*", but="syncer.brain syncer.events"),
    "a performer does not read the brain": Rule(
        "swift_diloco.island.performer syncer.server", "swift_diloco.island.brain syncer.brain syncer.cli"
    ),
    # Inside the core.
    "formats write nothing": Rule(
        "swift_diloco.core.formats", f"swift_diloco.core.* {OUTSIDE}",
        but=f"swift_diloco.core.errors swift_diloco.core.layout {PLAIN}",
    ),
    "layout is geometry": Rule(
        "swift_diloco.core.layout", f"swift_diloco.core.* {OUTSIDE}", but=f"swift_diloco.core.errors {PLAIN} xxhash"
    ),
    "a story touches nothing": Rule(
        "swift_diloco.core.story", f"swift_diloco.core.* {OUTSIDE}",
        but=f"swift_diloco.core.errors {PLAIN} copy importlib json types xxhash",
    ),
    "numbers touch nothing": Rule(
        "swift_diloco.core.numbers",
        f"swift_diloco.core.files swift_diloco.core.settings swift_diloco.core.command_line {OUTSIDE}",
        but=f"{COMPUTES} numba xxhash",
    ),
    "settings are data": Rule(
        "swift_diloco.core.settings",
        "swift_diloco.core.numbers swift_diloco.core.files numpy numba zmq torch os time random",
    ),
    "files of both are told where": Rule("swift_diloco.core.files", "swift_diloco.core.settings zmq torch numba"),
    # Inside trainers, launch, cpu, simulate and tools.
    "nobody knows a trainer's inside": Rule(
        "swift_diloco.trainers", "swift_diloco.trainers.megatron swift_diloco.trainers.hf"
    ),
    "a trainer does not start the own syncer": Rule(
        "swift_diloco.trainers.megatron swift_diloco.trainers.hf", "swift_diloco.trainers.embedded"
    ),
    "the own syncer is any trainer's": Rule("swift_diloco.trainers.embedded", "swift_diloco.trainers"),
    "the plugin stands alone": Rule("swift_diloco.launch.entry", "swift_diloco.launch"),
    "stand-ins know Megatron only": Rule(
        "swift_diloco.cpu.te", "swift_diloco.cpu swift mcore_bridge", but="swift_diloco.cpu.errors"
    ),
    "worlds know no fleets": Rule("swift_diloco.simulate.worlds", "swift_diloco.simulate"),
    "fleets know worlds": Rule(
        "swift_diloco.simulate.fleets", "swift_diloco.simulate.*", but="swift_diloco.simulate.worlds"
    ),
    "data knows no job": Rule(
        "swift_diloco.tools.quickstart.data", "swift_diloco.tools.quickstart.*",
        but="swift_diloco.tools.quickstart.errors",
    ),
    "a result knows no job": Rule(
        "swift_diloco.tools.quickstart.result", "swift_diloco.tools.quickstart.*",
        but="swift_diloco.tools.quickstart.errors swift_diloco.tools.quickstart.data",
    ),
    "jobs know no run": Rule(
        "swift_diloco.tools.quickstart.jobs",
        "swift_diloco.tools.quickstart.run swift_diloco.tools.quickstart.cli",
    ),
    # Who may know what from outside.
    "only trainers, launch and cpu know a trainer": Rule(
        "swift_diloco syncer", TRAINERS, unless="swift_diloco.trainers swift_diloco.launch swift_diloco.cpu"
    ),
    "only trainers and those who show their models know models": Rule(
        "swift_diloco syncer", MODELS,
        unless="swift_diloco.trainers swift_diloco.cpu swift_diloco.tools.quickstart swift_diloco.tools.export",
    ),
    "the base install needs no torch": Rule(
        "swift_diloco syncer", "torch",
        unless="swift_diloco.island swift_diloco.trainers swift_diloco.cpu swift_diloco.tools.bench "
        "swift_diloco.tools.export swift_diloco.tools.quickstart",
    ),
    "one room compiles": Rule("swift_diloco syncer", "numba", unless="swift_diloco.core.numbers"),
    "sockets are the links'": Rule(
        "swift_diloco syncer", "zmq",
        unless="swift_diloco.island.links syncer.links syncer.numbers.buffers swift_diloco.tools",
    ),
}  # fmt: skip

EXCEPTIONS = {
    Arrow("syncer.numbers.global_state", "time"): "it says how long a merge took",
    Arrow("syncer.numbers.buffers", "zmq"): "a buffer may be on its way in a message, which says when it is free",
    Arrow("swift_diloco.tools.quickstart", "swift_diloco.tools.audit"): "its report shows what the audit proves",
    Arrow("swift_diloco.tools.export", "swift_diloco.trainers.megatron"): "it is a trainer's model that is written",
}
"""Arrows that a rule forbids and that are right nevertheless."""

ENDS_AT_A_PACKAGE = {
    Arrow("swift_diloco.cli", "swift_diloco"): "the version stands there",
    Arrow(
        "swift_diloco.launch.cpu_switch", "swift_diloco.cpu"
    ): "a platform has one door, to be knocked at from outside",
    Arrow("swift_diloco.trainers.megatron.export", "swift_diloco.cpu"): "the same",
}
"""All else that is imported is a module: no rule sees what is reached by way of a package."""

LOOKS_INSIDE = {
    "swift_diloco.core.story.copies": {"__dict__"},
    "swift_diloco.core.story.frozen": {"__dict__", "vars"},
}
"""Pure modules that copy and write down brains, whatever these consist of, and the doors they use for that."""

REACHES = set(
    "modules __globals__ __builtins__ locate load_module find_spec spec_from_file_location exec_module".split()
)
"""Names by which a module is got hold of without an import."""

REACHING = {
    "swift_diloco.cpu": "what Megatron asks for by name is there under that name",
    "swift_diloco.cpu.after_import": "a loader that wraps another one",
    "swift_diloco.cpu.stand_ins": "it asks whether the real one is installed",
    "swift_diloco.launch.cpu_switch": "it must come before Megatron is loaded",
    "swift_diloco.launch.plugins": "it asks whether a plugin is installed",
    "swift_diloco.launch.entry.swift_diloco_plugin": "it asks which trainer is loaded",
    "swift_diloco.trainers.hf.supported": "it asks whether another trainer is loaded",
}
"""Modules that do."""

DYNAMIC = {
    "swift_diloco.cli": "COMMANDS, all of them tools or simulate",
    "swift_diloco.cpu.stand_ins": "it imports what lies beside it under the names that Megatron asks for",
    "swift_diloco.cpu.after_import": "a loader that wraps another one",
    "swift_diloco.core.story.frozen": "a dump names the brains' classes, and no other is imported",
    "swift_diloco.tools.bench.cli": "a bench is imported only when it is asked for; all lie beside it",
}
"""Modules with an import whose name stands nowhere."""

CALLS = set(
    "dataclass field auto frozenset tuple range sum int str float TypeVar "
    "re.compile logging.getLogger msgspec.Meta msgspec.msgpack.Decoder msgspec.msgpack.Encoder msgspec.json.Encoder "
    "msgspec.json.Decoder get_args WIRE_VERSION.to_bytes object type "
    "torch.no_grad torch.device np.uint32 np.array fields_of Setting CpuFlag Case TrainerCheckpoint ResumedRank Preset "
    "HelocoSettings".split()
)
"""What modules call while they are imported: nothing that opens, starts, reads or registers anything."""

CALLS_WITH_EFFECT = {"swift_diloco.launch.entry.swift_diloco_plugin": "register"}
"""ms-swift imports a plugin for that."""


def excused(arrow: Arrow) -> bool:
    """Whether an exception names it."""
    return any(matched(each.importer, arrow.importer) and matched(each.imported, arrow.imported) for each in EXCEPTIONS)


# -- The tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_no_arrow_crosses_a_wall(rule: str) -> None:
    assert [arrow for arrow in offences(RULES[rule], TABLE.values()) if not excused(arrow)] == []


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=str)
def test_an_exception_is_still_needed(exception: Arrow) -> None:
    crossing = [arrow for rule in RULES.values() for arrow in offences(rule, TABLE.values())]
    assert any(matched(exception.importer, each.importer) and matched(exception.imported, each.imported)
               for each in crossing), "take it out"  # fmt: skip


def folders_without_rule(table: Iterable[Module]) -> list[str]:
    """Folders that no rule names."""
    folders = sorted({module.folder for module in table})
    patterns = [pattern for rule in RULES.values() for pattern in rule.who.split()]
    return [folder for folder in folders if not any(matched(each, folder) == folder for each in patterns)]


def test_every_folder_has_a_rule() -> None:
    assert folders_without_rule(TABLE.values()) == []


def test_what_lies_beside_rooms_is_named_by_a_rule() -> None:
    named = {word for rule in RULES.values() for word in f"{rule.who} {rule.unless}".split()}
    beside = {name for name, module in TABLE.items() if module.folder in HOUSES.split() and name != module.folder}
    assert beside - named == set()


def test_what_the_rules_name_is_there() -> None:
    named = {
        word
        for rule in RULES.values()
        for part in (rule.who, rule.never, rule.but, rule.unless)
        for word in part.split()
    }
    ours = [word for word in named if word.partition(".")[0] in ("swift_diloco", "syncer")]
    assert [word for word in ours if not concrete(word, TABLE)] == []


def test_nothing_is_imported_in_a_circle() -> None:
    assert circles(TABLE) == []


def test_imports_whose_names_stand_nowhere_are_listed_with_a_reason() -> None:
    assert {name for name, module in TABLE.items() if module.dynamic} == set(DYNAMIC)


def test_importing_a_module_opens_and_starts_nothing() -> None:
    called = {name: module.calls - CALLS for name, module in TABLE.items() if module.calls - CALLS}
    assert called == {name: {call} for name, call in CALLS_WITH_EFFECT.items()}


def test_an_import_ends_at_a_module() -> None:
    rooms = {module.folder for module in TABLE.values()}
    found = {Arrow(name, each) for name, module in TABLE.items() for each in module.imports & rooms}
    assert found == set(ENDS_AT_A_PACKAGE)


def parsed(patterns: str) -> dict[str, ast.Module]:
    """The sources of the modules that patterns match."""
    paths = {name: ROOT / (name.replace(".", "/") + ".py") for name in TABLE if matches(patterns, name)}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def test_a_brain_asks_no_builtin_for_a_file_a_terminal_or_chance() -> None:
    used = {node.id for tree in parsed(BRAINS).values() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set("open input print hash id breakpoint".split()) & used == set()
    named = {each for tree in parsed(BRAINS).values() for node in ast.walk(tree) for each in names_in(node)}
    assert set("ForwardRef get_type_hints _evaluate".split()) & named == set()


def test_modules_are_got_hold_of_by_imports_but_for_those_listed_with_a_reason() -> None:
    trees = parsed("swift_diloco syncer")
    trees["swift_diloco.cpu"] = ast.parse((ROOT / "swift_diloco/cpu/__init__.py").read_text(encoding="utf-8"))
    named = {name: {each for node in ast.walk(tree) for each in names_in(node)} for name, tree in trees.items()}
    assert {name for name, names in named.items() if REACHES & names} == set(REACHING)


def test_pure_code_has_no_door_to_what_it_does_not_import() -> None:
    found = {name: doors(tree, TABLE[name].folder) for name, tree in parsed(PURE).items()}
    assert {name: each for name, each in found.items() if each} == LOOKS_INSIDE
    assert len(found) > 50


def test_a_room_says_its_rule_and_holds_nothing_else() -> None:
    rooms = {name: module for name, module in TABLE.items() if name == module.folder and name != "swift_diloco.cpu"}
    assert {name: module.imports for name, module in rooms.items() if module.imports} == {}
    docs = {name: (ROOT / name.replace(".", "/") / "__init__.py").read_text(encoding="utf-8") for name in rooms}
    assert [name for name, text in docs.items() if not text.startswith('"""')] == []


# -- Planted offences -------------------------------------------------------------------------------------------------


def planted(who: str, imported: str, folder: Path) -> Module:
    """A module more in `who` if that is a folder, or one in its place."""
    name = f"{who}.planted" if any(module.folder == who for module in TABLE.values()) else who
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(f"def later() -> None:\n    import {imported} as it\n", encoding="utf-8")
    return read_module(path, folder, TABLE)


def crossings() -> Iterable[tuple[str, str, str, str]]:
    """Of each rule: each place it is for, each pattern it forbids there, and an import that this forbids, if any."""
    for name, rule in RULES.items():
        for who in (place for pattern in rule.who.split() for place in concrete(pattern, TABLE)):
            for pattern in rule.never.split():
                names = [each for each in concrete(pattern, TABLE) or [pattern] if forbids(pattern, who, who, each)]
                free = [each for each in names if not matches(rule.but, each)]
                yield name, who, pattern, "time" if pattern == OUTSIDE else "".join(free[:1])


CROSSINGS = {(rule, who, imported) for rule, who, _, imported in crossings() if imported}


@pytest.mark.parametrize(("rule", "who", "imported"), sorted(CROSSINGS))
def test_a_planted_offence_is_found(rule: str, who: str, imported: str, tmp_path: Path) -> None:
    module = planted(who, imported, tmp_path)
    assert offences(RULES[rule], [module]) == [Arrow(module.name, imported)]


def test_every_part_of_a_rule_has_something_to_find() -> None:
    assert {rule for rule, *_ in crossings()} == set(RULES)
    assert [dead for *dead, imported in crossings() if not imported] == []


@pytest.mark.parametrize(
    "folder", ["swift_diloco.more", "swift_diloco.island.more", "syncer.more", "syncer.brain.more"]
)
def test_a_new_folder_without_a_rule_is_found(folder: str, tmp_path: Path) -> None:
    path = tmp_path.joinpath(*folder.split("."), "__init__.py")
    path.parent.mkdir(parents=True)
    path.touch()
    assert folders_without_rule([*TABLE.values(), read_module(path, tmp_path, TABLE)]) == [folder]


def test_a_new_tool_has_the_rule_of_tools(tmp_path: Path) -> None:
    path = tmp_path / "swift_diloco" / "tools" / "more" / "__init__.py"
    path.parent.mkdir(parents=True)
    path.touch()
    assert folders_without_rule([read_module(path, tmp_path, TABLE)]) == []


# -- Processes --------------------------------------------------------------------------------------------------------

HEAVY = {"numba", "torch", "numpy"}
IMPURE = HEAVY | {"zmq", "logging", "threading", "socket", "subprocess", "tempfile", "random", "secrets", "asyncio"}


def loaded_by(statement: str, code: int = 0) -> set[str]:
    """The modules of a process that ran a statement and ended with a code."""
    program = f"import sys\ntry:\n    {statement}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "start", ["syncer.brain.coordinator", "swift_diloco.island.brain.session", "swift_diloco.tools.admin.cli"]
)
def test_neither_a_brain_nor_status_can_ever_load_a_compiler_or_arrays(start: str) -> None:
    reached = {start, *reached_from(start, TABLE)}
    assert set().union(*(TABLE[name].outside for name in reached)) & HEAVY == set()


@pytest.mark.net
def test_a_brain_loads_no_arrays_socket_thread_logger_or_chance() -> None:
    brains = [name for name in TABLE if matches(BRAINS, name)]
    loaded = loaded_by(f"import {', '.join(brains)}")
    assert set(brains) <= loaded
    assert loaded & IMPURE == set()


@pytest.mark.net
@pytest.mark.parametrize("words", [[], ["--help"], ["audit", "--help"], ["quickstart", "--help"], ["bench", "--help"]])
def test_help_loads_no_compiler_and_no_arrays(words: list[str]) -> None:
    loaded = loaded_by(f"from swift_diloco.cli import main; sys.exit(main({words!r}))")
    assert "swift_diloco.cli" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.net
def test_no_command_loads_torch_or_a_compiler_before_it_is_asked_to_act() -> None:
    doors = concrete("swift_diloco.tools.*.cli swift_diloco.simulate.cli", TABLE)
    loaded = loaded_by(f"import {', '.join(doors)}")
    assert len(doors) > 7 and set(doors) <= loaded
    assert loaded & {"torch", "numba"} == set()


@pytest.mark.net
def test_status_loads_no_compiler_and_no_arrays(tmp_path: Path) -> None:
    words = ["status", "--run-dir", str(tmp_path)]
    loaded = loaded_by(f"from swift_diloco.cli import main; sys.exit(main({words!r}))", code=2)
    assert "swift_diloco.tools.admin.ask" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.net
def test_importing_the_whole_syncer_loads_no_trainer() -> None:
    names = [name for name in TABLE if matches("syncer", name) and name != "syncer.__main__"]
    loaded = loaded_by(f"import {', '.join(names)}")
    assert set(names) <= loaded
    assert {name.partition(".")[0] for name in loaded} & {*TRAINERS.split(), *MODELS.split(), "torch"} == set()
    ours = [name for name in loaded if matches("swift_diloco", name) and not matches("swift_diloco.core", name)]
    assert ours == ["swift_diloco"]
