"""What a manifest says, as JSON: the names of an earlier manifest are those of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swift_diloco.core.formats.manifest import FORMAT, CarriedPush, Manifest
from swift_diloco.core.formats.messages import ValueName

GOLDEN = Path(__file__).parents[1] / "files" / "golden_checkpoint" / "manifest.json"


@pytest.fixture
def golden() -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(GOLDEN.read_bytes())["manifest"]
    return manifest


def test_the_golden_manifest_says_the_same_when_it_is_written_again(golden: dict[str, Any]) -> None:
    manifest = msgspec.convert(golden, Manifest)
    assert manifest.format == FORMAT and json.loads(msgspec.json.encode(manifest)) == golden


def test_a_carried_push_tells_what_the_syncer_must_know_to_merge_it(golden: dict[str, Any]) -> None:
    (push,) = msgspec.convert(golden, Manifest).state.carried
    assert push == CarriedPush(
        push="g.1",
        island=1,
        generation="g",
        fragment=1,
        t=2,
        anchor=ValueName(1, 0, "13a9a5487c6c69d19d96f229d57f300d"),
        steps=3,
        tokens=30,
        capture_step=9,
        weight=300.0,
        payload_bytes=24,
    )


@pytest.mark.parametrize("field", ["steps", "anchor", "push", "weight"])
def test_a_carried_push_without_a_fact_is_refused(golden: dict[str, Any], field: str) -> None:
    del golden["state"]["carried"][0][field]
    with pytest.raises(msgspec.ValidationError, match=f"missing required field `{field}`"):
        msgspec.convert(golden, Manifest)
