"""The bytes of a status, pinned; and what its reader refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.status import CheckpointStatus, StatusError, decode, encode

GOLDEN = (Path(__file__).parent / "golden_status.json").read_bytes().rstrip()


def test_a_status_is_read_and_written_back_byte_for_byte() -> None:
    status = decode(GOLDEN)
    assert encode(status) == GOLDEN
    assert (status.phase, status.versions, status.open[0].needed, status.members[1].step_s) == (
        "training",
        (4, 3),
        2,
        None,
    )
    assert status.checkpoint == CheckpointStatus(3, "", "no room") and status.late[0].missed == 4


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(GOLDEN).items() if key != name}


@pytest.mark.parametrize("name", json.loads(GOLDEN))
def test_a_status_that_lacks_a_field_is_refused(name: str) -> None:
    with pytest.raises(StatusError, match=f"missing required field `{name}`; expected the fields phase, run, t"):
        decode(json.dumps(without(name)))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("moon", 1, "unknown field `moon`"),
        ("t", "4", r"Expected `int`, got `str` - at `\$.t`"),
        ("joining", [None], r"Expected `int`, got `null` - at `\$.joining\[0\]`"),
        ("open", [{"moon": 1}], r"unknown field `moon` - at `\$.open\[0\]`"),
    ],
)
def test_a_status_of_another_form_is_refused(name: str, value: object, fault: str) -> None:
    with pytest.raises(StatusError, match=fault) as caught:
        decode(json.dumps(without(name) | {name: value}))
    assert isinstance(caught.value, UserError) and "the swift-diloco that runs the syncer" in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null"])
def test_what_is_no_status_is_refused(raw: bytes) -> None:
    with pytest.raises(StatusError, match="no status of a syncer"):
        decode(raw)
