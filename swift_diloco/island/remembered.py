"""What an island remembers of its anchors over a restart: the part of a sync record that the brain reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from swift_diloco.core.layout.fragments import FragmentPlan

Count = Annotated[int, msgspec.Meta(ge=0)]
"""Checked when a record is read."""


class AnchorRecord(msgspec.Struct, frozen=True):
    """What a checkpoint remembers of one fragment. A record written by hand may leave the digest empty."""

    version: Count
    digest: str = ""
    steps: Count = 0
    tokens: Count = 0
    spent: bool = False
    push: str = ""


@dataclass(frozen=True)
class Remembered:
    """What an island that resumes from a checkpoint brings to its first Welcome."""

    run: str
    """Empty: not compared."""
    plan: FragmentPlan
    anchors: tuple[AnchorRecord | None, ...]
    with_values: bool
    """The anchor values were saved too, so local progress can be carried onto a newer value."""
    publish_encoding: str = ""
    """How the anchors travelled to the island, so which bits they have. Empty: not compared."""
