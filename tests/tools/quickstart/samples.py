"""Files as the other processes write them, made by rule: two islands, two fragments, six outer steps."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from swift_diloco.core.formats.tape_lines import (
    Commit,
    Contribution,
    Fetched,
    Final,
    FragmentSize,
    Init,
    Refused,
    Resumed,
    Stopped,
    TapeLine,
    encode,
)
from swift_diloco.tools.quickstart.result.losses import Point
from swift_diloco.tools.quickstart.result.report import Measured, RunFacts

Row = dict[str, Any]

BEGIN_S = 1000.0
FRAGMENT_BYTES = 4096
OUTER_STEPS = 6
STEPS = 30


def contribution(island: int, t: int, lag: int = 0) -> Contribution:
    """One island's part in commit t: 5 local steps of 100 tokens (island 0) or 120 (island 1)."""
    return Contribution(
        island=island,
        generation=f"g{island}",
        push=f"p{t}-{island}",
        base_version=max(0, t - 2),
        lag=lag,
        steps=5,
        tokens=500 + 100 * island,
        weight=1.0,
        bytes=FRAGMENT_BYTES,
        capture_step=5 * t,
    )


def commit(t: int, **changes: Any) -> Commit:
    """Outer step t, at t seconds after the begin."""
    line = Commit(
        time=BEGIN_S + t,
        t=t,
        fragment=(t - 1) % 2,
        version=t,
        digest="d",
        void=False,
        contributions=(contribution(1, t, lag=int(t == 4)), contribution(0, t)),
        offenders=(),
        quorum_s=0.5,
        round_s=1.0,
        merge_s=0.01,
    )
    return replace(line, **changes)


def fetched(time_s: float, island: int, fragment: int, version: int) -> Fetched:
    """One whole fragment downloaded by the only rank of an island."""
    return Fetched(
        time=BEGIN_S + time_s,
        island=island,
        generation=f"g{island}",
        rank=0,
        fragment=fragment,
        version=version,
        digest="d",
        bytes=FRAGMENT_BYTES,
    )


def resumed(time_s: float, t: int) -> Resumed:
    """The syncer was started again from the checkpoint of outer step t."""
    return Resumed(time=BEGIN_S + time_s, t=t, run="r", versions=(), carried=())


def tape_lines() -> list[TapeLine]:
    """A whole run: first cut, six commits each fetched by both, one refusal, the final cut fetched by both."""
    sizes = tuple(FragmentSize(id=i, tensors=3, elements=1024, bytes=FRAGMENT_BYTES) for i in range(2))
    lines: list[TapeLine] = [Init(time=BEGIN_S, run="r", fragments=sizes, layout="l")]
    lines += [fetched(0.1, island, fragment, 0) for island in range(2) for fragment in range(2)]
    for t in range(1, OUTER_STEPS + 1):
        lines.append(commit(t))
        lines += [fetched(t + 0.2, island, (t - 1) % 2, t) for island in range(2)]
    lines.append(Refused(time=BEGIN_S + 6.5, island=1, push="p", fragment=0, reason="late"))
    lines.append(Final(time=BEGIN_S + 7, t=OUTER_STEPS, versions=(5, 6)))
    lines += [fetched(7.1, island, fragment, 5 + fragment) for island in range(2) for fragment in range(2)]
    lines.append(Stopped(time=BEGIN_S + 8, reason="final cut served"))
    return lines


def log_rows(steps: int = STEPS, begin: float = 7.0) -> list[Row]:
    """What ms-swift logs: the loss falls by 0.1 a step, and a summary without a step ends the file."""
    rows: list[Row] = [
        {"loss": round(begin - 0.1 * i, 4), "grad_norm": 1.0, "iteration": f"{i + 1}/{steps}"} for i in range(steps)
    ]
    return [*rows, {"train_dataset": "54.0±17.5", "last_model_checkpoint": "/x/checkpoint-30"}]


def points(steps: int = STEPS, begin: float = 7.0) -> list[Point]:
    """The curve that `log_rows` describes."""
    return [Point(i + 1, round(begin - 0.1 * i, 4)) for i in range(steps)]


def measured(**changes: Any) -> Measured:
    """Measurements of a good run."""
    good: dict[str, Any] = {
        "held_out_loss_before": 7.5,
        "held_out_loss_after": 5.0,
        "alone_held_out_loss": 5.1,
        "final_digests": {0: "ab", 1: "ab"},
    }
    return Measured(**{**good, **changes})


def facts() -> RunFacts:
    """The set-up of a run, with a command that HTML must escape."""
    commands = {"island-0": ("megatron", "sft", "--system", "<b>&</b>"), "alone": ("megatron", "sft")}
    return RunFacts(parameters=1234567, examples=4463, held_out_examples=256, commands=commands, seconds=120.04)


def write_tape(path: Path) -> None:
    """Write the tape of a whole run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode(line, line.time) for line in tape_lines()))


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
