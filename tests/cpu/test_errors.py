"""Errors name the feature and what to use instead."""

import pytest

from swift_diloco.cpu.errors import UnsupportedOnCpuError, refuse_options, unsupported


def test_the_message_names_the_feature_and_the_alternative() -> None:
    error = unsupported("fused RoPE", "use --apply_rope_fusion false")
    assert str(error) == "fused RoPE is not supported on the CPU platform; use --apply_rope_fusion false"


def test_an_error_can_be_made_again_with_a_longer_message_as_megatron_does() -> None:
    error = unsupported("fused RoPE")
    again = type(error)(f"{error} when instantiating Attention")
    assert str(again) == "fused RoPE is not supported on the CPU platform when instantiating Attention"


def test_options_that_are_off_are_accepted_and_one_that_is_on_is_named() -> None:
    refuse_options("Linear", {"ub_overlap_ag": False, "symmetric_ar_type": None, "ub_name": ""})
    with pytest.raises(UnsupportedOnCpuError, match=r"Linear\(ub_overlap_ag=True\)"):
        refuse_options("Linear", {"ub_name": None, "ub_overlap_ag": True})
