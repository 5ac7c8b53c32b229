"""A contract's words are read in one place, and a word no island knows is refused by name."""

from __future__ import annotations

import pytest

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats.messages import Contract
from swift_diloco.island.brain.terms import ordinary_align, published_exactly
from swift_diloco.island.events import Align


@pytest.mark.parametrize("align", [Align.OVERWRITE, Align.BLEND, Align.CARRY])
def test_ordinary_installs_are_aligned_as_the_contract_says(align: Align) -> None:
    assert ordinary_align(Contract(align=align.value)) is align


@pytest.mark.parametrize("word", ["keep", "shift", "anchor", "Blend", ""])
def test_an_alignment_that_is_no_ordinary_one_is_refused(word: str) -> None:
    with pytest.raises(PeerError, match=rf"to {word!r}; expected one of \['blend', 'carry', 'overwrite'\]"):
        ordinary_align(Contract(align=word))


@pytest.mark.parametrize(("encoding", "exactly"), [("f32", True), ("bf16", False)])
def test_only_float32_publishes_values_exactly(encoding: str, exactly: bool) -> None:
    assert published_exactly(Contract(publish_encoding=encoding)) is exactly
