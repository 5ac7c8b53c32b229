"""The schedule of a resumed job against that of an uninterrupted one, on Megatron's own scheduler.

Its file is loaded alone: importing megatron.core takes ten seconds, and all it wants from there is a logging helper.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from swift_diloco.trainers.megatron.schedule import catch_up

BATCH = 4
ITERATIONS = 12

STYLES: dict[str, dict[str, Any]] = {
    "cosine": {"lr_decay_style": "cosine"},
    "linear": {"lr_decay_style": "linear"},
    "constant": {"lr_decay_style": "constant"},
    "inverse square root": {"lr_decay_style": "inverse-square-root"},
    "WSD, exponential": {"lr_decay_style": "WSD", "lr_wsd_decay_style": "exponential", "wsd_decay_steps": 5 * BATCH},
    "WSD, cosine": {"lr_decay_style": "WSD", "lr_wsd_decay_style": "cosine", "wsd_decay_steps": 5 * BATCH},
    "WSD, minus square root": {
        "lr_decay_style": "WSD", "lr_wsd_decay_style": "minus_sqrt", "wsd_decay_steps": 5 * BATCH,
    },
}  # fmt: skip
WARM_UPS = {"none": 0, "3 iterations": 3 * BATCH, "a fraction of 0.13": 0.13 * ITERATIONS * BATCH}
WEIGHT_DECAYS: dict[str, dict[str, Any]] = {
    "constant": {"start_wd": 0.1, "end_wd": 0.1, "wd_incr_style": "constant"},
    "linear": {"start_wd": 0.01, "end_wd": 0.1, "wd_incr_style": "linear"},
    "cosine": {"start_wd": 0.0, "end_wd": 0.1, "wd_incr_style": "cosine"},
}


@contextmanager
def stand_in_for_utils() -> Iterator[None]:
    """`megatron.core.utils` with what the scheduler imports; no trace of it afterwards."""
    names = ("megatron", "megatron.core", "megatron.core.utils")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: ModuleType(name) for name in names})
    sys.modules[names[-1]].log_single_rank = lambda *args: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def load_scheduler() -> Any:
    found = importlib.util.find_spec("megatron")
    assert found is not None and found.submodule_search_locations is not None
    path = Path(next(iter(found.submodule_search_locations))) / "core" / "optimizer_param_scheduler.py"
    spec = importlib.util.spec_from_file_location("optimizer_param_scheduler_alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with stand_in_for_utils():
        spec.loader.exec_module(module)
    return module.OptimizerParamScheduler


OptimizerParamScheduler = load_scheduler()


def scheduler(style: str = "cosine", warm_up: str = "3 iterations", decay: str = "linear") -> Any:
    """As ms-swift builds it, over groups with rates, least rates and shares of the weight decay of their own."""
    groups: list[dict[str, Any]] = [
        {"params": [], "wd_mult": 1.0},
        {"params": [], "wd_mult": 0.0},
        {"params": [], "wd_mult": 1.0, "max_lr": 3e-3, "min_lr": 2e-4},
        {"params": [], "wd_mult": 0.5, "start_wd": 0.2, "end_wd": 0.2 if decay == "constant" else 0.3},
    ]
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=groups),
        init_lr=1e-6,
        max_lr=1e-3,
        min_lr=1e-5,
        lr_warmup_steps=WARM_UPS[warm_up],
        lr_decay_steps=ITERATIONS * BATCH,
        wd_incr_steps=ITERATIONS * BATCH,
        **STYLES[style],
        **WEIGHT_DECAYS[decay],
    )


def rates(scheduler: Any) -> list[tuple[float, float]]:
    return [(group["lr"], group["weight_decay"]) for group in scheduler.optimizer.param_groups]


def step(scheduler: Any) -> list[tuple[float, float]]:
    scheduler.step(increment=BATCH)
    return rates(scheduler)


@pytest.mark.parametrize(("style", "warm_up", "decay"), [*itertools.product(STYLES, WARM_UPS, WEIGHT_DECAYS)])
def test_every_group_has_the_rates_of_the_uninterrupted_run_at_every_resumed_step(
    style: str, warm_up: str, decay: str
) -> None:
    whole = scheduler(style, warm_up, decay)
    uninterrupted = [rates(whole), *(step(whole) for _ in range(ITERATIONS + 2))]
    assert uninterrupted[1] != uninterrupted[-3] or (style, warm_up, decay) == ("constant", "none", "constant")
    for resumed_at in range(1, ITERATIONS + 1):
        resumed = scheduler(style, warm_up, decay)
        assert catch_up(resumed, resumed_at, BATCH)
        assert rates(resumed) == uninterrupted[resumed_at]
        for iteration in range(resumed_at + 1, ITERATIONS + 2):
            assert step(resumed) == uninterrupted[iteration]


def test_restored_schedule_is_left_alone() -> None:
    saved = scheduler()
    for _ in range(5):
        step(saved)
    restored = scheduler()
    restored.load_state_dict(saved.state_dict())
    assert not catch_up(restored, 5, BATCH)
    assert restored.num_steps == 5 * BATCH
    assert rates(restored) == rates(saved)


def test_schedule_of_a_cold_start_is_left_alone() -> None:
    fresh = scheduler()
    assert not catch_up(fresh, 0, BATCH)
    assert (fresh.num_steps, rates(fresh)) == (0, rates(scheduler()))


def test_schedule_is_caught_up_once() -> None:
    resumed = scheduler()
    assert [catch_up(resumed, 4, BATCH) for _ in range(2)] == [True, False]
    assert resumed.num_steps == 4 * BATCH
