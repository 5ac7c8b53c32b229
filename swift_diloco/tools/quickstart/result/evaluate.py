"""What a saved model is worth, and whether two are the same: held-out loss and a digest of all tensors.

It knows Hugging Face folders and (question, answer) pairs, not how they came to be. The loss is the mean cross-entropy
over the tokens that ms-swift trains on: the answer and the end of its turn.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash
from safetensors import deserialize

from swift_diloco.tools.quickstart.data.model import TURN_BEGIN, TURN_END
from swift_diloco.tools.quickstart.errors import QuickstartError

BATCH_SEQUENCES = 32
"""Sequences per forward pass: a few MiB of logits."""

SEQUENCE_TOKENS_MAX = 512
"""The model's number of positions; a longer sequence is cut."""

IGNORED_LABEL = -100
"""What torch's cross-entropy leaves out."""


def encode_turns(tokenizer: Any, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Token ids and labels of one exchange, each part encoded on its own as ms-swift does."""
    prompt = tokenizer.encode(
        f"{TURN_BEGIN}user\n{question}{TURN_END}\n{TURN_BEGIN}assistant\n", add_special_tokens=False
    )
    reply = tokenizer.encode(answer, add_special_tokens=False)
    reply += tokenizer.encode(f"{TURN_END}\n", add_special_tokens=False)
    ids = (prompt + reply)[:SEQUENCE_TOKENS_MAX]
    return ids, ([IGNORED_LABEL] * len(prompt) + reply)[:SEQUENCE_TOKENS_MAX]


def _batches(encoded: Sequence[tuple[list[int], list[int]]], pad: int) -> Iterator[tuple[Any, Any]]:
    """Padded (ids, labels) tensors, similar lengths together."""
    import torch

    by_length = sorted(encoded, key=lambda pair: len(pair[0]))
    for start in range(0, len(by_length), BATCH_SEQUENCES):
        part = by_length[start : start + BATCH_SEQUENCES]
        width = max(len(ids) for ids, _ in part)
        ids = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in part])
        labels = torch.tensor([labels + [IGNORED_LABEL] * (width - len(labels)) for _, labels in part])
        yield ids, labels


def held_out_loss(folder: Path, pairs: Sequence[tuple[str, str]]) -> float:
    """Mean cross-entropy per answer token of the model saved in `folder`, computed in FP32.

    Padding stands at the end and attention is causal, so no mask is needed: padded places are ignored by the labels.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    encoded = [encode_turns(tokenizer, question, answer) for question, answer in pairs]
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for ids, labels in _batches(encoded, tokenizer.pad_token_id):
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
            )
            total += float(losses)
            tokens += int((labels[:, 1:] != IGNORED_LABEL).sum())
    loss = total / max(tokens, 1)
    if tokens == 0 or not math.isfinite(loss):
        raise QuickstartError(f"the held-out loss of {folder} is {loss} over {tokens} tokens: expected a finite number")
    return loss


def newest_export(output_dir: Path) -> Path:
    """The folder of the last checkpoint that ms-swift exported under `output_dir`."""
    found = [
        (int(path.parent.name.rpartition("-")[2]), path.parent)
        for path in output_dir.glob("checkpoint-*/config.json")
        if path.parent.name.rpartition("-")[2].isdigit() and any(path.parent.glob("*.safetensors"))
    ]
    if not found:
        raise QuickstartError(
            f"no exported model under {output_dir}: expected checkpoint-*/ with config.json and safetensors; "
            "the trainer's log says why it did not save"
        )
    return max(found)[1]


def tensor_digest(folder: Path) -> str:
    """xxh3-128 over name, type, shape and bytes of every tensor in the folder's safetensors, in the order of the names.

    How the tensors are cut into files does not matter.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
            if name in tensors:
                raise QuickstartError(f"tensor {name} is twice in {folder}: remove the files of the older export")
            tensors[name] = tensor
    if not tensors:
        raise QuickstartError(f"no tensors in {folder}: expected the safetensors files of an exported model")
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, tensor["dtype"], list(tensor["shape"])]).encode())
        digest.update(bytes(tensor["data"]))
    return digest.hexdigest()
