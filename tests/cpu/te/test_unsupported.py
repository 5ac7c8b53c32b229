"""Names that exist and refuse, and the one that works."""

import pytest
import torch

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.unsupported import SplitAlongDim, apply_rotary_pos_emb, unsupported_class


def test_class_that_stands_for_a_feature_has_its_name_and_cannot_be_made() -> None:
    kind = unsupported_class("the layer TEThing", "use the plain one")
    assert kind.__name__ == "TEThing" and not isinstance(1, kind)
    with pytest.raises(UnsupportedOnCpuError, match="the layer TEThing is not supported .*; use the plain one"):
        kind(1, two=2)


def test_fused_rope_names_the_flag_that_turns_it_off() -> None:
    with pytest.raises(UnsupportedOnCpuError, match="--apply_rope_fusion false"):
        apply_rotary_pos_emb(torch.zeros(1))


def test_split_along_a_dimension_may_squeeze_it() -> None:
    values = torch.arange(6).reshape(2, 3)
    assert [part.tolist() for part in SplitAlongDim.apply(values, 1, [1, 2])] == [[[0], [3]], [[1, 2], [4, 5]]]
    assert [part.tolist() for part in SplitAlongDim.apply(values, 0, 1, squeeze=True)] == [[0, 1, 2], [3, 4, 5]]
