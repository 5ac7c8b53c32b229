"""Who may import whom: the directions between the packages, read from the source and checked once in a process."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import swift_diloco

ROOT = Path(swift_diloco.__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "swift_diloco").rglob("*.py"), *(ROOT / "syncer").rglob("*.py")])
TRAINERS = {"megatron", "swift", "mcore_bridge", "transformer_engine"}
KNOWS_A_TRAINER = (
    "swift_diloco.trainers.megatron",
    "swift_diloco.trainers.hf",
    "swift_diloco.cpu",
    "swift_diloco.launch",
)
# A simulated world has both sides in it, the real brain of the syncer too. It is a tool beside the product: no island
# loads it.
KNOWS_BOTH_SIDES = "swift_diloco.simulate"
# Control and numbers: time, randomness and order are arguments there.
PURE = (
    "swift_diloco.island.brain.session", "swift_diloco.island.brain.anchors", "swift_diloco.core.formats.messages",
    "swift_diloco.core.layout",
    "swift_diloco.core.numbers.codec", "swift_diloco.core.numbers.merge", "swift_diloco.core.numbers.outer_optimizer",
    "syncer.brain.coordinator", "syncer.brain.memory.roster", "syncer.brain.memory.round",
)  # fmt: skip
IMPURE_MODULES = {
    "asyncio", "logging", "os", "pathlib", "random", "secrets", "shutil", "signal", "socket", "subprocess", "tempfile",
    "threading", "time", "zmq",
}  # fmt: skip


def module_name(path: Path) -> str:
    """`swift_diloco/core/layout/tensors.py` is `swift_diloco.core.layout.tensors`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it: `from a import b` counts as `a` and as `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def within(name: str, *packages: str) -> bool:
    """Whether a module is one of these packages or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


IMPORTS = {module_name(path): imports_of(path) for path in SOURCES}


def offences(importers: set[str], forbidden: set[str]) -> list[str]:
    """Who among `importers` imports a top-level package that is `forbidden` to it."""
    return sorted(
        f"{importer} imports {name}"
        for importer in importers
        for name in IMPORTS[importer]
        if name.partition(".")[0] in forbidden
    )


def test_the_table_sees_both_packages() -> None:
    assert {"swift_diloco.core.settings.syncer_settings", "swift_diloco.launch.start"} <= set(IMPORTS)
    assert any(within(name, "syncer") for name in IMPORTS)


def test_the_syncer_imports_only_the_core() -> None:
    syncer = [name for name in IMPORTS if within(name, "syncer")]
    wrong = [
        f"{importer} imports {name}"
        for importer in syncer
        for name in IMPORTS[importer]
        if within(name, "swift_diloco") and not within(name, "swift_diloco.core") and name != "swift_diloco"
    ]
    assert wrong == []
    assert offences(set(syncer), TRAINERS | {"torch", "transformers"}) == []


def test_nothing_of_the_islands_imports_the_syncer() -> None:
    islands = {name for name in IMPORTS if within(name, "swift_diloco") and not within(name, KNOWS_BOTH_SIDES)}
    assert offences(islands, {"syncer"}) == []


def test_only_the_command_line_knows_the_simulation() -> None:
    wrong = [
        importer
        for importer in IMPORTS
        for name in IMPORTS[importer]
        if within(name, KNOWS_BOTH_SIDES) and not within(importer, KNOWS_BOTH_SIDES, "swift_diloco.cli")
    ]
    assert wrong == []


def test_a_world_takes_the_brains_of_the_syncer_and_not_its_shell() -> None:
    world = {name for name in IMPORTS if within(name, KNOWS_BOTH_SIDES)}
    taken = {name for importer in world for name in IMPORTS[importer] if within(name, "syncer")}
    assert not any(
        within(name, "syncer.server", "syncer.links.endpoint", "syncer.numbers.global_state") for name in taken
    )
    assert offences(world, TRAINERS | {"torch", "transformers", "zmq"}) == []


def test_only_the_parts_made_for_a_trainer_know_one() -> None:
    others = {name for name in IMPORTS if not within(name, *KNOWS_A_TRAINER)}
    assert offences(others, TRAINERS) == []


def test_what_the_base_install_runs_needs_no_torch() -> None:
    base = {
        name for name in IMPORTS if within(name, "swift_diloco.core", "swift_diloco.cli", "swift_diloco.launch", *PURE)
    }
    assert offences(base, {"torch", "transformers"}) == []


def test_the_core_imports_only_itself() -> None:
    wrong = [
        f"{importer} imports {name}"
        for importer in IMPORTS
        if within(importer, "swift_diloco.core")
        for name in IMPORTS[importer]
        if within(name, "swift_diloco") and not within(name, "swift_diloco.core")
    ]
    assert wrong == []


@pytest.mark.parametrize("module", PURE)
def test_control_and_numbers_read_no_clock_file_socket_or_chance(module: str) -> None:
    if module not in IMPORTS and not any(within(name, module) for name in IMPORTS):
        pytest.skip(f"{module} is not written yet")
    assert offences({name for name in IMPORTS if within(name, module)}, IMPURE_MODULES) == []


@pytest.mark.net
def test_importing_the_whole_syncer_loads_no_trainer() -> None:
    import syncer

    names = [each.name for each in pkgutil.walk_packages(syncer.__path__, "syncer.") if "__main__" not in each.name]
    code = f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\nprint(*sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    loaded = shown.split()
    assert set(names) <= set(loaded)
    assert {name.partition(".")[0] for name in loaded} & (TRAINERS | {"torch", "transformers", "peft"}) == set()
    ours = [name for name in loaded if within(name, "swift_diloco") and not within(name, "swift_diloco.core")]
    assert ours == ["swift_diloco"]
