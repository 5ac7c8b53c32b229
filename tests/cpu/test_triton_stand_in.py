"""Kernels of Triton can be imported, decorated and named, and not launched."""

from types import ModuleType

import pytest

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.triton_stand_in import Placeholder, names, placeholders

NAMES = names()


@pytest.mark.parametrize("decorate", [NAMES["jit"], NAMES["jit"](do_not_specialize=["n"])], ids=["plain", "options"])
def test_launching_a_kernel_is_an_error_that_names_it(decorate: object) -> None:
    def add_kernel() -> None:
        raise AssertionError("no kernel runs")

    assert callable(decorate)
    kernel = decorate(add_kernel)
    with pytest.raises(UnsupportedOnCpuError, match="the Triton kernel add_kernel is not supported"):
        kernel[(1,)](3)


def test_tuning_leaves_a_kernel_as_it_is() -> None:
    kernel = NAMES["jit"](names)
    assert NAMES["autotune"](configs=[], key=[])(kernel) is kernel and NAMES["heuristics"]({})(kernel) is kernel


def test_placeholder_names_its_parts_and_is_a_base_of_nothing() -> None:
    part = Placeholder("triton.language").math.exp
    with pytest.raises(UnsupportedOnCpuError, match="the Triton kernel triton.language.math.exp"):
        part()
    with pytest.raises(AttributeError):
        part.__wrapped__  # noqa: B018 (what inspect asks everything)

    class Kernel(part):  # type: ignore[misc,valid-type]
        pass

    assert Kernel.__mro__ == (Kernel, object)


def test_module_has_every_name_but_those_of_python() -> None:
    look = placeholders(ModuleType("triton.language"))
    with pytest.raises(UnsupportedOnCpuError, match=r"triton.language.float32"):
        look("float32")()
    with pytest.raises(AttributeError):
        look("__path__")


@pytest.mark.parametrize(("value", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (1025, 2048)])
def test_sizes_are_computed_as_triton_computes_them(value: int, power: int) -> None:
    assert NAMES["next_power_of_2"](value) == power
    assert [NAMES["cdiv"](value, 4)] == [(value + 3) // 4]
