"""What `import transformer_engine` and `import triton` find."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from swift_diloco.cpu import stand_ins
from swift_diloco.cpu.errors import UnsupportedOnCpuError

PACKAGES = ("transformer_engine", "triton")


@pytest.fixture
def finder() -> Iterator[stand_ins.StandInFinder]:
    """A registered finder for both packages; afterwards the process is as before."""

    def belongs(name: str) -> bool:
        return name.partition(".")[0] in PACKAGES

    before = {name: module for name, module in sys.modules.items() if belongs(name)}
    for name in before:
        del sys.modules[name]
    finder = stand_ins.StandInFinder(frozenset(PACKAGES))
    sys.meta_path.insert(0, finder)
    yield finder
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if belongs(name)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize("name", sorted(stand_ins.TABLE))
def test_every_module_of_the_table_can_be_imported(finder: stand_ins.StandInFinder, name: str) -> None:
    module = importlib.import_module(name)
    assert set(stand_ins.TABLE[name]()) <= set(vars(module))


def test_importing_the_package_imports_its_parts(finder: stand_ins.StandInFinder) -> None:
    engine = importlib.import_module("transformer_engine")
    assert engine.__version__ == "2.6.0"
    assert engine.pytorch.attention.rope.apply_rotary_pos_emb is engine.pytorch.attention.apply_rotary_pos_emb
    assert engine.common.recipe.Format.E4M3.value == 0


def test_a_part_that_has_no_stand_in_is_not_there(finder: stand_ins.StandInFinder) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"transformer_engine\.pytorch\.router"):
        importlib.import_module("transformer_engine.pytorch.router")


def test_a_finder_leaves_other_packages_alone(finder: stand_ins.StandInFinder) -> None:
    assert finder.find_spec("torch") is None and finder.find_spec("triton.unknown") is None
    assert stand_ins.StandInFinder(frozenset({"transformer_engine"})).find_spec("triton") is None


@pytest.mark.parametrize(
    ("module", "name", "feature"),
    [
        ("transformer_engine.common.recipe", "DelayedScaling", "FP8/FP4 recipe DelayedScaling"),
        ("transformer_engine.pytorch.ops", "SwiGLU", "operation fuser: SwiGLU"),
        ("transformer_engine.pytorch", "fp8_autocast", "FP8 autocast"),
        ("transformer_engine.pytorch", "fp8_model_init", "FP8 parameters"),
        ("transformer_engine.pytorch.attention", "apply_rotary_pos_emb", "fused RoPE"),
    ],
)
def test_using_an_unsupported_feature_names_it(
    finder: stand_ins.StandInFinder, module: str, name: str, feature: str
) -> None:
    with pytest.raises(UnsupportedOnCpuError, match=feature):
        getattr(importlib.import_module(module), name)()


def kernel_module(triton: Any) -> Any:
    """What a kernel file does with triton while it is imported."""
    language = triton.language

    def kernel(pointer: object, n: object, block: language.constexpr) -> None:  # type: ignore[name-defined]
        language.store(pointer, language.load(pointer))

    tune = triton.autotune(configs=[triton.Config({"block": 64}, num_warps=4)], key=["n"])
    return tune(triton.jit(kernel))


def test_triton_kernels_can_be_declared_but_not_launched(finder: stand_ins.StandInFinder) -> None:
    triton = importlib.import_module("triton")
    importlib.import_module("triton.language")
    kernel = kernel_module(triton)
    with pytest.raises(UnsupportedOnCpuError, match="the Triton kernel kernel"):
        kernel[(1,)](None, 1)
    assert triton.cdiv(7, 2) == 4 and [triton.next_power_of_2(n) for n in (1, 2, 3, 9)] == [1, 2, 4, 16]


def test_triton_is_stood_in_for_only_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, expected in ((True, {"transformer_engine"}), (False, set(PACKAGES))):
        monkeypatch.setattr(stand_ins, "is_installed", lambda package, answer=installed: answer)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        assert stand_ins.register().packages == expected


def test_is_installed_looks_for_real_packages() -> None:
    assert stand_ins.is_installed("pytest") and not stand_ins.is_installed("no_such_package")
