"""A tiny Qwen3 (dense or with experts), random weights, a tokenizer, chat data, and a command line for them.

build() needs transformers and tokenizers; in tests it is called in the fork server, which has them imported.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = 512
HIDDEN = 64
LAYERS = 4
EXPERTS = 4
EXAMPLES = 400
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyProject:
    """The folder that build() fills."""

    folder: Path
    model_type: str = "qwen3"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def data(self) -> Path:
        return self.folder / "data.jsonl"

    def arguments(self, output_dir: Path, extra: Sequence[str] = (), /, **overrides: object) -> list[str]:
        """A command line for `megatron sft`: 4 steps of 4 examples; `overrides` replace or add flags, None removes one.

        Flags that a CPU needs are not here: the CPU platform adds them.
        """
        flags: dict[str, object] = {
            "model": self.model, "model_type": self.model_type, "template": "qwen3", "dataset": self.data,
            "tuner_type": "full", "check_model": "false", "finetune": "true", "save_safetensors": "false",
            "max_length": 128, "train_iters": 4, "micro_batch_size": 2, "global_batch_size": 4, "lr": 1e-3,
            "logging_steps": 1, "dataloader_num_workers": 0, "output_dir": output_dir, "add_version": "false",
        }  # fmt: skip
        flags |= overrides
        words = [str(word) for name, value in flags.items() if value is not None for word in (f"--{name}", value)]
        return [*words, *extra]


def build(folder: Path, model_type: str = "qwen3") -> TinyProject:
    """Write the model, its tokenizer and the data below `folder`; the same bytes every time. `qwen3` or `qwen3_moe`."""
    project = TinyProject(folder, model_type)
    project.model.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(project.model)
    _write_model(project.model, model_type)
    _write_data(project.data)
    return project


def build_from_command_line() -> None:
    """For the fork server: `tests.forkserver.tiny:build_from_command_line FOLDER [MODEL_TYPE]`."""
    build(Path(sys.argv[1]), *sys.argv[2:])


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["what is the sum of one and two? the answer is three. "], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _write_model(folder: Path, model_type: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    common: dict[str, object] = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "bos_token_id": None, "pad_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    experts: dict[str, object] = {
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": HIDDEN, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": True, "router_aux_loss_coef": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    if model_type == "qwen3_moe":
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **experts))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**common))
    model.to(torch.bfloat16).save_pretrained(folder)


def _write_data(file: Path) -> None:
    numbers = random.Random(0)
    with file.open("w") as output:
        for _ in range(EXAMPLES):
            first, second = numbers.randint(0, 9), numbers.randint(0, 9)
            question = {"role": "user", "content": f"what is {first}+{second}?"}
            answer = {"role": "assistant", "content": f"the answer is {first + second}."}
            output.write(json.dumps({"messages": [question, answer]}) + "\n")
