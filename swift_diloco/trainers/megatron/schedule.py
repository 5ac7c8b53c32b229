"""The schedule of learning rate and weight decay of a resumed job.

ms-swift restores the schedule only together with the optimizer. Resumed without it (`--no_load_optim true`, or from
safetensors alone) the schedule would start again at step 0 while the iteration goes on, warm-up included. A schedule
that is fresh while the job is not is stepped once to the resumed iteration here, so every parameter group has the rate
and the weight decay of the uninterrupted run. Knows Megatron's `OptimizerParamScheduler` only.
"""

from __future__ import annotations

from typing import Any


def catch_up(scheduler: Any, iteration: int, global_batch_size: int) -> bool:
    """Bring a fresh schedule to `iteration`; a restored one, or that of a cold start, is left alone. Whether it moved.

    The schedule counts samples (`opt_param_scheduler.step(increment=args.global_batch_size)` in ms-swift's
    `train_step`) of successful updates. How many updates were skipped before the checkpoint is not known without its
    optimizer state; they count as done.
    """
    if iteration <= 0 or scheduler.num_steps != 0:
        return False
    scheduler.step(increment=iteration * global_batch_size)
    return True
