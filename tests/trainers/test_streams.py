"""What a stream of a fragment must be, and when it may be used."""

from __future__ import annotations

import pytest
import torch

from swift_diloco.trainers.streams import await_copies, check_stream


def test_stream_of_the_promised_size_and_type_is_taken() -> None:
    check_stream(3, torch.zeros(5), 5)


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (torch.zeros(4), r"torch.float32 of shape \[4\]"),
        (torch.zeros(5, dtype=torch.bfloat16), r"torch.bfloat16 of shape \[5\]"),
        (torch.zeros(1, 5), r"torch.float32 of shape \[1, 5\]"),
    ],
)
def test_other_streams_are_refused_with_what_they_are_and_what_was_expected(stream: torch.Tensor, found: str) -> None:
    with pytest.raises(ValueError, match=rf"the stream of fragment 3 is {found}; expected float32 of \[5\]"):
        check_stream(3, stream, 5)


def test_only_accelerators_are_waited_for_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def synchronize(self) -> None:
            waited.append(self.device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    devices = [torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cuda", 0)]
    await_copies(devices)
    assert sorted(device.index for device in waited) == [0, 1]
