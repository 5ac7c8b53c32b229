"""The ranks of an island agree over gloo, with payloads of any size, and fail together."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from swift_diloco.core.errors import DilocoError, InternalError, UserError
from swift_diloco.island.ranks.together import all_or_none
from swift_diloco.island.ranks.torch_group import TorchGroup
from tests.trainers.megatron.ranks import run_ranks

pytestmark = pytest.mark.net


def _talk(rank: int) -> dict[str, object]:
    group = TorchGroup(timeout_s=30)
    big = bytes(range(256)) * 4096
    return {
        "who": (group.rank, group.size),
        "broadcast": group.broadcast(b"hello" if rank == 0 else None),
        "broadcast of nothing": group.broadcast(b"" if rank == 0 else None),
        "large": group.broadcast(big if rank == 0 else None) == big,
        "gather": list(group.gather(b"x" * rank)),
        "gather of nothing": list(group.gather(b"")),
        "votes": group.all_true([True, rank != 1, False]),
        "no votes": group.all_true([]),
        "sums": group.sums([rank, 1 << 40]),
    }


def test_every_call_gives_what_the_protocol_says(tmp_path: Path) -> None:
    same = {
        "broadcast": b"hello",
        "broadcast of nothing": b"",
        "large": True,
        "votes": [True, False, False],
        "no votes": [],
        "sums": [3, 3 << 40],
    }
    assert run_ranks(3, tmp_path, _talk) == [
        {**same, "who": (0, 3), "gather": [b"", b"x", b"xx"], "gather of nothing": [b"", b"", b""]},
        {**same, "who": (1, 3), "gather": [], "gather of nothing": []},
        {**same, "who": (2, 3), "gather": [], "gather of nothing": []},
    ]


def _closed(rank: int) -> str:
    group = TorchGroup(timeout_s=30)
    group.close()
    group.close()
    with pytest.raises(InternalError) as caught:
        group.broadcast(b"late")
    return str(caught.value)


def test_closed_group_says_so_instead_of_waiting(tmp_path: Path) -> None:
    assert run_ranks(1, tmp_path, _closed) == ["the group of ranks is closed"]


def _fail_together(rank: int) -> list[str]:
    group = TorchGroup(timeout_s=30)
    seen = [str(all_or_none(group, lambda: rank))]

    def work(error: Exception | None) -> int:
        if error is not None and rank == 1:
            raise error
        return rank

    for error in (UserError("a flag is wrong"), DilocoError("a peer went away"), ValueError("a bug")):
        try:
            all_or_none(group, partial(work, error))
        except Exception as caught:
            seen.append(f"{type(caught).__name__}: {caught}")
    return seen


def test_failure_of_one_rank_is_everybodys_with_its_reason(tmp_path: Path) -> None:
    shared = ["UserError: a flag is wrong", "DilocoError: rank 1: a peer went away"]
    assert run_ranks(2, tmp_path, _fail_together) == [
        ["0", *shared, "DilocoError: rank 1: a bug"],
        ["1", *shared, "ValueError: a bug"],
    ]
