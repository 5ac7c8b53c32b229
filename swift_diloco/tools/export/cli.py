"""`swift-diloco export CHECKPOINT --hf MODEL_DIR --out DIR`: from the command line to the folder.

Says what it does before it does it; nothing is written unless the checkpoint is intact and fits the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.tools.export.tensors import is_megatron, load_tensors


def main(words: Sequence[str]) -> int:
    """The command."""
    parser = Parser(
        prog="swift-diloco export",
        description="Make a model that transformers loads from the checkpoint of a syncer.",
        epilog="What follows -- goes to ms-swift as it is, such as -- --model_type qwen3.",
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the syncer's checkpoint (its --checkpoint-path)")
    parser.add_argument("--hf", type=Path, required=True, help="folder of the model that the islands started from")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist, or be empty")
    own, extra = _split(list(words))
    given = parser.parse_args(own)
    if not (given.hf / "config.json").is_file() and not (given.hf / "adapter_config.json").is_file():
        raise UserError(f"--hf {given.hf} is no folder of a model: it has no config.json")
    if given.out.exists() and (not given.out.is_dir() or any(given.out.iterdir())):
        raise UserError(f"--out {given.out} exists already; give a folder that does not")
    tensors, what = load_tensors(given.checkpoint)
    print(f"exporting {len(tensors)} tensors of {what}", flush=True)
    if is_megatron(list(tensors)):
        from swift_diloco.trainers.megatron.export import export_megatron

        count = export_megatron(tensors, given.hf.absolute(), given.out.absolute(), extra)
    else:
        from swift_diloco.tools.export.plain import export_plain

        count = export_plain(tensors, given.hf, given.out)
    print(f"wrote {given.out}: {count} tensors of the checkpoint, the rest as in {given.hf}")
    return 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our words, and those after `--`."""
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]
