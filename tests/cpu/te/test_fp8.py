"""FP8 can be named everywhere and switched on nowhere."""

import pytest

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te import fp8

RECIPES = [
    fp8.DelayedScaling,
    fp8.Float8CurrentScaling,
    fp8.Float8BlockScaling,
    fp8.MXFP8BlockScaling,
    fp8.NVFP4BlockScaling,
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_can_be_made_and_the_refusal_names_it_and_the_way_out(recipe: type[fp8.Recipe]) -> None:
    with pytest.raises(UnsupportedOnCpuError, match=rf"recipe {recipe.__name__} is not supported.*train in bf16"):
        recipe(margin=0)


@pytest.mark.parametrize(
    ("context", "feature"), [(fp8.fp8_autocast, "FP8 autocast"), (fp8.fp8_model_init, "FP8 parameters")]
)
def test_contexts_are_entered_only_with_fp8_off(context: object, feature: str) -> None:
    assert callable(context)
    with context(enabled=False, fp8_recipe=None):
        assert fp8.FP8GlobalStateManager.is_fp8_enabled() is False
    with pytest.raises(UnsupportedOnCpuError, match=feature):
        context()


def test_global_state_says_off_and_why() -> None:
    state = fp8.FP8GlobalStateManager
    assert state.is_fp8_available() == (False, "FP8 is not supported on the CPU platform")
    assert (state.get_fp8_recipe(), state.is_first_fp8_module(), state.FP8_ENABLED) == (None, False, False)
