"""A small Qwen3 with random weights and its own tokenizer, saved as a Hugging Face folder.

It knows texts and sizes, not where the texts are from or who trains. Invariant: the same texts and the same sizes give
the same bytes (fixed seed, one thread of BPE training), so every run of the quickstart starts from one model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20260429
"""Fixed, so that two runs of the quickstart can be compared."""

PAD = "<|endoftext|>"
TURN_BEGIN = "<|im_start|>"
TURN_END = "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SWIFT_TEMPLATE = "qwen3_nothinking"
"""The ms-swift template that formats a turn exactly as CHAT_TEMPLATE does (no system prompt, no think block)."""


@dataclass(frozen=True)
class ModelSize:
    """The shape of the model: small enough that the real trainer takes about 0.2 s a step on one core."""

    vocab: int = 2048
    layers: int = 4
    hidden: int = 128
    intermediate: int = 384
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    positions: int = 512


def build_tokenizer(texts: Iterable[str], vocab: int) -> Any:
    """Train a byte-level BPE tokenizer: any text can be encoded, there is no unknown token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, TURN_BEGIN, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=PAD, additional_special_tokens=[TURN_BEGIN]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(size: ModelSize, eos_token_id: int, pad_token_id: int) -> Any:
    """A Qwen3 with seeded random weights, in bf16 as real checkpoints are."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.positions,
        tie_word_embeddings=False,
        eos_token_id=eos_token_id,
        bos_token_id=None,
        pad_token_id=pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen3ForCausalLM(config)
    return model.to(torch.bfloat16)


def quiet() -> None:
    """No progress bars for what takes a moment."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def write_model(folder: Path, texts: Iterable[str], size: ModelSize) -> int:
    """Write tokenizer and model into `folder`; returns the number of parameters."""
    quiet()
    tokenizer = build_tokenizer(texts, size.vocab)
    model = build_model(size, tokenizer.eos_token_id, tokenizer.pad_token_id)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return int(model.num_parameters())
