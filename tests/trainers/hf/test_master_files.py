"""FP32 copies survive a restart, with the same number of ranks or another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swift_diloco.trainers.hf.master_files import FILE, load_masters, save_masters
from swift_diloco.trainers.hf.shares import share

SHAPES = {"a.weight": (6, 4), "b.bias": (5,)}
VALUES = {name: torch.randn(24 if name == "a.weight" else 5) for name in SHAPES}
STEP = 12


def ranges(rank: int, ranks: int, *, filled: bool) -> dict[str, tuple[int, int, torch.Tensor]]:
    found = {}
    for name, shape in SHAPES.items():
        begin, end = share(shape, rank, ranks)
        if end > begin:
            found[name] = (begin, end, VALUES[name][begin:end].clone() if filled else torch.zeros(end - begin))
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for rank in range(2):
        save_masters(tmp_path, ranges(rank, 2, filled=True), STEP, rank, 2)
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_any_number_of_ranks_reads_its_own_ranges(saved: Path, ranks: int) -> None:
    for rank in range(ranks):
        wanted = ranges(rank, ranks, filled=False)
        assert load_masters(saved, wanted, STEP) is None
        for name, (begin, end, values) in wanted.items():
            assert values.equal(VALUES[name][begin:end])


def test_files_that_are_not_whole_change_nothing_and_say_why(saved: Path) -> None:
    wanted = ranges(0, 1, filled=False)
    assert load_masters(saved, wanted, STEP + 1) == (
        f"a file is of step {STEP} and 2 ranks; expected step {STEP + 1} and 2 ranks"
    )
    (saved / FILE.format(rank=1)).unlink()
    trouble = load_masters(saved, wanted, STEP)
    assert trouble is not None and FILE.format(rank=1) in trouble
    assert load_masters(saved / "nowhere", wanted, STEP) == "none were saved"
    assert all(not values.any() for _, _, values in wanted.values())


def test_files_of_an_older_start_with_more_ranks_are_not_mixed_in(saved: Path) -> None:
    save_masters(saved, ranges(0, 1, filled=True), STEP, 0, 1)
    wanted = ranges(0, 1, filled=False)
    assert load_masters(saved, wanted, STEP) is None
    assert wanted["b.bias"][2].equal(VALUES["b.bias"])


def test_a_tensor_that_was_not_saved_is_named(saved: Path) -> None:
    wanted = {"c.weight": (0, 3, torch.zeros(3))}
    assert load_masters(saved, wanted, STEP) == "the files do not hold all of 'c.weight'"
