"""Encodings of deltas and of published values, through a real syncer process: all islands end with equal bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess, check_tape, run_islands
from tests.fakes.island import Job

pytestmark = pytest.mark.net

SHARE = {"f32": 1.0, "bf16": 0.5, "int8": 260 / 1024, "q4": 132 / 1024}
"""Bytes of an encoded delta by those of its float32."""


@pytest.mark.parametrize(("deltas", "published"), [("f32", "bf16"), ("bf16", "f32"), ("int8", "f32"), ("q4", "bf16")])
def test_islands_end_with_the_same_float32_bits(tmp_path: Path, deltas: str, published: str) -> None:
    flags = ("--delta-encoding", deltas, "--publish-encoding", published, "--error-feedback")
    with SyncerProcess(tmp_path, *FAST, "--min-islands", "2", *flags) as syncer:
        address = syncer.address
        first, second = run_islands(
            [
                Job(address, island=0, ranks=1, steps=12, target=1.1, step_s=0.02, elements=30_000),
                Job(address, island=1, ranks=2, steps=12, target=3.3, start=9.0, step_s=0.02, elements=30_000),
            ]
        )
        assert syncer.wait() == 0, syncer.text()
        check_tape(syncer.tape(), min_islands=2)
        (init,) = syncer.events(tape_lines.Init)
        pushes = [
            (init.fragments[line.fragment].bytes, part.bytes)
            for line in syncer.events(tape_lines.Commit)
            for part in line.contributions
            if part.steps
        ]
    assert first.digest == second.digest
    for name, tensor in first.tensors.items():
        assert 0.5 < tensor.min() <= tensor.max() < 3.4, (name, tensor)
        low_bits = tensor.view(np.uint32) & 0xFFFF
        assert low_bits.any(), "the final cut came in bf16"
    assert pushes
    for plain, travelled in pushes:
        assert travelled == pytest.approx(plain * SHARE[deltas], rel=0.02)


@pytest.mark.parametrize("encoding", ["f32", "int8"])
def test_islands_with_a_correction_against_the_momentum_end_with_the_same_bits(tmp_path: Path, encoding: str) -> None:
    flags = ("--correction", "heloco", "--outer-momentum", "0.5", "--outer-lr", "0.5", "--delta-encoding", encoding)
    with SyncerProcess(tmp_path, *FAST, "--min-islands", "2", *flags) as syncer:
        address = syncer.address
        first, second = run_islands(
            [
                Job(address, island=0, steps=15, target=1.0, step_s=0.02),
                Job(address, island=1, ranks=2, steps=15, target=3.0, step_s=0.02),
            ]
        )
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
