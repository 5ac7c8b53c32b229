"""Errors name the feature and what to use instead."""

import pytest

from swift_diloco.cpu.errors import UnsupportedOnCpuError, refuse_options


def test_the_message_names_the_feature_and_the_alternative() -> None:
    error = UnsupportedOnCpuError("fused RoPE", "use --apply_rope_fusion false")
    assert str(error) == "fused RoPE is not supported on the CPU platform; use --apply_rope_fusion false"
    assert error.feature == "fused RoPE"


def test_options_that_are_off_are_accepted_and_one_that_is_on_is_named() -> None:
    refuse_options("Linear", {"ub_overlap_ag": False, "symmetric_ar_type": None, "ub_name": ""})
    with pytest.raises(UnsupportedOnCpuError, match=r"Linear\(ub_overlap_ag=True\)"):
        refuse_options("Linear", {"ub_name": None, "ub_overlap_ag": True})
