"""The learning rate of a resumed job.

The trainer restores the schedule only together with the optimizer; resumed without it (`--resume_only_model`, a
checkpoint of `--save_only_model`) the schedule would start again at step 0. A schedule that is fresh while the job is
not is brought to the resumed step here, so the rate is that of the uninterrupted run. Knows torch's schedulers only.
"""

from __future__ import annotations

import warnings
from typing import Any


def catch_up(scheduler: Any, step: int) -> bool:
    """Bring a fresh schedule to `step`; a restored one, and one that follows a metric, is left alone. Whether
    it moved."""
    inner = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps some
    if step <= 0 or getattr(inner, "last_epoch", None) != 0 or hasattr(inner, "num_bad_epochs"):
        return False
    with warnings.catch_warnings():
        # torch warns that no optimizer step came before; it came in the run that is resumed.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
        for _ in range(step):
            inner.step()
    return True
