"""`swift-diloco quickstart` with fake trainers and a fake model, as a process of its own that can be interrupted.

Everything but the trainer, the model and its losses is real.
"""

import sys
from pathlib import Path

import pytest

from swift_diloco.tools.quickstart import cli, run
from swift_diloco.tools.quickstart.data import corpus
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs import commands
from swift_diloco.tools.quickstart.result import evaluate

LOSSES = {"model": 7.5, "alone": 5.1}
"""By folder; the islands' is 5.0."""


def prepare(folder: QuickstartFolder, islands: int) -> tuple[corpus.Corpus, int]:
    """Data of eight examples; no model."""
    examples = [corpus.Example("m", f"f{i}", f"What is f{i}?", f"The function number {i}.") for i in range(8)]
    data = corpus.split(examples, islands, 2)
    corpus.write_jsonl(folder.held_out, data.held_out)
    for island, shard in enumerate(data.shards):
        corpus.write_jsonl(folder.shard(island), shard)
    return data, 3


def held_out_loss(folder: Path, pairs: object) -> float:
    """Told by the folder's name."""
    return next((loss for name, loss in LOSSES.items() if name in folder.parts), 5.0)


def megatron(folder: Path) -> Path:
    """An executable that runs the fake trainer."""
    program = folder / "megatron"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.tools.quickstart.fake_megatron "$@"\n')
    program.chmod(0o755)
    return program


def main(folder: str, argv: list[str]) -> int:
    """Put the fakes in place and run the real command."""
    program = megatron(Path(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "trainer_program", lambda trainer: str(program))
        patch.setattr(run, "_prepare", prepare)
        patch.setattr(run, "SYNCER_EXIT_LIMIT_S", 5.0 if "patient" in argv else 0.5)
        patch.setattr(evaluate, "held_out_loss", held_out_loss)
        return cli.main([word for word in argv if word != "patient"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
