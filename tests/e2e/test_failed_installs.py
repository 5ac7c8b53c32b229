"""An install that fails on one rank: nothing is trained, saved or said after it, and every rank ends with an error.

The moments at which values go into the model: the start, a boundary between two steps, one at which the trainer saves,
and the final cut, which is followed by the last save. With a real syncer, for islands of one rank and of two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess
from tests.fakes.quadratic import QuadraticModel
from tests.fakes.trial import Trial

pytestmark = pytest.mark.net

BROKEN = "this device is gone"
STEPS = 12
MANY = 4000
"""More than an island takes that is to break before its end."""

MOMENTS: dict[str, Callable[[Trial], bool]] = {
    "start": lambda trial: True,
    "boundary": lambda trial: trial.steps_done > 2,
    "final cut": lambda trial: trial.session.final is not None,
}
"""From when on installs fail. Every step of the island is saved, so each boundary is one at which it saves, too."""


class Fragile(QuadraticModel):
    """Its last rank breaks, in what it does alone or in what it does with the others."""

    trial: ClassVar[Trial]
    what: ClassVar[str]
    moment: ClassVar[str]
    broke_after: ClassVar[int | None] = None
    """The steps that were done by then."""

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        self._break("write")
        super().write(values)

    def spread(self, fragments: Collection[int]) -> None:
        self._break("spread")
        super().spread(fragments)

    def _break(self, what: str) -> None:
        if self.rank == self.ranks - 1 and what == self.what and MOMENTS[self.moment](self.trial):
            type(self).broke_after = self.trial.steps_done
            raise RuntimeError(BROKEN)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("what", ["write", "spread"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_install_that_fails_on_one_rank_ends_the_island_before_anything_else(
    moment: str, what: str, ranks: int, tmp_path: Path
) -> None:
    out, steps = tmp_path / "out", STEPS if moment == "final cut" else MANY
    with SyncerProcess(tmp_path / "run", *FAST, "--expected-islands", "2") as syncer:
        broken = Trial(
            syncer.address, steps, 1, ranks, start=4.0, out=out, save_every=1, looks=False,
            model_type=type("Broken", (Fragile,), {"what": what, "moment": moment}),
        )  # fmt: skip
        model: Any = broken.model_type
        model.trial = broken
        other = Trial(syncer.address, steps).begin()
        broken.begin()
        with pytest.raises((RuntimeError, DilocoError), match=BROKEN):
            broken.join()
        other.steps = min(other.steps, other.steps_done + 5)
        other.join()
        assert syncer.wait() == 0, syncer.text()
        said = syncer.text()
        left = [line for line in syncer.tape() if isinstance(line, tape_lines.Left) and line.island == 1]
    texts = sorted(f"{type(error).__name__}: {error}" for error in broken.errors)
    assert texts == [*["DilocoError: rank 1: " + BROKEN] * (ranks - 1), "RuntimeError: " + BROKEN]
    assert broken.steps_done == model.broke_after
    assert (model.broke_after == 0, model.broke_after == STEPS) == (moment == "start", moment == "final cut")
    assert max(broken.saved_at, default=0) <= broken.steps_done
    assert {int(folder.name.partition("-")[2]) for folder in out.glob("checkpoint-*")} == set(broken.saved_at)
    assert [BROKEN in line.reason for line in left] == [True]
    assert "island 1 installed the final cut" not in said
