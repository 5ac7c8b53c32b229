"""The command lines of the quickstart: what a user would type for two islands and for one alone.

It knows flags of ms-swift and our own, and opens nothing but a port number. Invariant: the command lines of island 0
and of the island alone differ only in the `--plugin`/`--diloco_*` part and the output folder.
"""

import dataclasses
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swift_diloco.core.errors import UserError
from swift_diloco.tools.quickstart.data.model import SWIFT_TEMPLATE
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs.supervisor import JobCommand

LOOPBACK = "127.0.0.1"

PRESET = "quickstart"
"""The shipped preset: patience for one machine, fine-tuning's outer optimizer."""

SEQUENCE_TOKENS = 192
"""Longest example in tokens, with room: answers have at most 240 letters."""

CHAOS_SAVES = 12
"""Checkpoints of a job that may be killed."""

CHAOS_SYNCER = {
    "min-islands": 1,
    "reconnect-grace-s": 1,
    "checkpoint-every": 4,
    "checkpoint-on-start": "true",
    "background-checkpoint": "true",
}
"""Flags of a syncer that is killed: its islands go on without one that died, and it can be started again."""

OTHERS_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "NNODES", "NODE_RANK")
"""What a surrounding torchrun may have set, and a job of our own must not inherit."""


TrainerName = Literal["megatron", "swift"]
"""Which of ms-swift's commands trains: Megatron on the CPU platform, or transformers."""


@dataclass(frozen=True)
class TrainingRecipe:
    """How the jobs train: tuned so that all of it takes two minutes on two cores and the loss falls clearly."""

    steps: int
    islands: int = 2
    trainer: TrainerName = "megatron"
    batch: int = 16
    learning_rate: float = 3e-3
    sync_every_steps: int = 12
    fragments: int = 4
    chaos: bool = False
    """An island and the syncer are killed midway: save often, and let the others go on."""

    @property
    def save_every(self) -> int:
        """Local steps between checkpoints; undisturbed jobs save at their end only."""
        return max(1, self.steps // CHAOS_SAVES) if self.chaos else self.steps


def trainer_program(trainer: TrainerName) -> str:
    """Path of ms-swift's `megatron` or `swift` command, of this very Python's environment if it has one."""
    beside = Path(sys.executable).with_name(trainer)
    found = str(beside) if beside.exists() else shutil.which(trainer)
    if found is None:
        raise UserError(f"ms-swift's `{trainer}` command is not installed; run: pip install 'swift-diloco[cpu]'")
    return found


def free_port() -> int:
    """A port that is free now (torchrun's rendezvous wants a number before it starts)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def job_variables(trainer: TrainerName) -> dict[str, str]:
    """What a job has in its environment beyond what the user's shell has: one rank, one thread, no network."""
    common = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if trainer == "swift":  # one process, without torchrun; it needs no CPU platform
        return common
    return {"NPROC_PER_NODE": "1", "MASTER_PORT": str(free_port()), **common, "YETO_DILOCO_PLATFORM": "cpu"}


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without another job's rank and without settings of another DiLoCo run."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OTHERS_VARIABLES and not name.startswith("YETO_DILOCO_")
    }


def training_flags(folder: QuickstartFolder, recipe: TrainingRecipe, shard: int, job: str) -> list[str]:
    """What every job has in common: model, data, optimizer, where it saves."""
    flags: dict[str, object] = {
        "model": folder.model,
        "model_type": "qwen3",
        "template": SWIFT_TEMPLATE,
        "check_model": "false",
        "dataset": folder.shard(shard),
        "split_dataset_ratio": 0,
        "max_length": SEQUENCE_TOKENS,
        "dataloader_num_workers": 0,
        "tuner_type": "full",
        "logging_steps": 1,
        "output_dir": folder.output(job),
        "add_version": "false",
        "save_steps": recipe.save_every,
        **(_swift_flags(recipe) if recipe.trainer == "swift" else _megatron_flags(recipe)),
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _megatron_flags(recipe: TrainingRecipe) -> dict[str, object]:
    return {
        "finetune": "true",
        "train_iters": recipe.steps,
        "micro_batch_size": recipe.batch,
        "global_batch_size": recipe.batch,
        "lr": recipe.learning_rate,
        "save_safetensors": "true",
        **({} if recipe.chaos else {"no_save_optim": "true"}),
    }


def _swift_flags(recipe: TrainingRecipe) -> dict[str, object]:
    return {
        "max_steps": recipe.steps,
        "per_device_train_batch_size": recipe.batch,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": "false",
        "learning_rate": recipe.learning_rate,
        "torch_dtype": "float32",
        "use_cpu": "true",
        "save_only_model": "false" if recipe.chaos else "true",
        "report_to": "none",
    }


def syncer_arguments(recipe: TrainingRecipe) -> str:
    """The command line of the embedded syncer, beyond the preset: every island in every round, and what was tuned."""
    flags: dict[str, object] = {
        "bind": f"tcp://{LOOPBACK}:0",
        "expected-islands": recipe.islands,
        "min-islands": recipe.islands,
        "quorum": recipe.islands,
        "sync-every-steps": recipe.sync_every_steps,
        "fragments": recipe.fragments,
        **(CHAOS_SYNCER if recipe.chaos else {}),
    }
    return shlex.join([word for name, value in flags.items() for word in (f"--{name}", str(value))])


def diloco_flags(folder: QuickstartFolder, recipe: TrainingRecipe, island: int, syncer: str) -> list[str]:
    """What makes a plain job an island."""
    flags = ["--plugin", "diloco", "--diloco_preset", PRESET, "--diloco_island_id", str(island)]
    flags += ["--diloco_syncer", syncer]
    if recipe.chaos:
        flags += ["--diloco_save_anchors", "true"]
    if syncer == "embedded":
        flags += ["--diloco_run_dir", str(folder.syncer), "--diloco_syncer_args", syncer_arguments(recipe)]
    return flags


def island_name(island: int) -> str:
    """The job's name: of its output folder, its log, and in the report."""
    return f"island-{island}"


ALONE = "alone"


def island_command(folder: QuickstartFolder, recipe: TrainingRecipe, island: int, syncer: str) -> JobCommand:
    """One island; `syncer` is `embedded` or the address of the one that runs already."""
    name = island_name(island)
    words = training_flags(folder, recipe, island, name) + diloco_flags(folder, recipe, island, syncer)
    return _command(folder, recipe, name, words)


def resumed_command(
    folder: QuickstartFolder, recipe: TrainingRecipe, island: int, syncer: str, checkpoint: Path
) -> JobCommand:
    """An island that goes on from its own checkpoint, with a log of its own."""
    name = island_name(island)
    words = training_flags(folder, recipe, island, name) + diloco_flags(folder, recipe, island, syncer)
    if recipe.trainer == "swift":
        words += ["--resume_from_checkpoint", str(checkpoint)]
    else:
        words[words.index("--finetune") + 1] = "false"
        words += ["--mcore_model", str(checkpoint)]
    return dataclasses.replace(_command(folder, recipe, name, words), log=folder.log(f"{name}-again"))


def alone_command(folder: QuickstartFolder, recipe: TrainingRecipe) -> JobCommand:
    """Island 0's data and number of steps, without the others and without the plugin."""
    return _command(folder, recipe, ALONE, training_flags(folder, recipe, 0, ALONE))


def _command(folder: QuickstartFolder, recipe: TrainingRecipe, name: str, words: list[str]) -> JobCommand:
    return JobCommand(
        name=name,
        argv=(trainer_program(recipe.trainer), "sft", *words),
        log=folder.log(name),
        variables=job_variables(recipe.trainer),
        base=inherited(os.environ),
    )
