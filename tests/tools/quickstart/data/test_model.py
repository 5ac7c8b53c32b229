"""model.py and evaluate.py with transformers on a very small model."""

import math
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.tools.quickstart.data import model
from swift_diloco.tools.quickstart.data.model import ModelSize
from swift_diloco.tools.quickstart.result import evaluate

pytestmark = pytest.mark.slow

SIZE = ModelSize(vocab=300, layers=2, hidden=16, intermediate=32, heads=2, kv_heads=1, head_dim=8, positions=128)
PAIRS = [
    ("What does json.dumps do?", "Serialize obj to a JSON formatted str."),
    ("What is a very much longer question about pathlib.Path for?", "PurePath subclass that can make system calls."),
    ("What is it?", "It."),
]
TEXTS = [text for pair in PAIRS for text in pair]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assert model.write_model(folder, TEXTS, SIZE) > 10_000
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_same_texts_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    model.write_model(tmp_path, TEXTS, SIZE)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert all((folder / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)
    assert evaluate.tensor_digest(folder) == evaluate.tensor_digest(tmp_path)


def test_transformers_loads_a_qwen3_of_the_asked_size(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded).__name__ == "Qwen3ForCausalLM"
    assert loaded.dtype == torch.bfloat16
    assert (loaded.config.num_hidden_layers, loaded.config.hidden_size, loaded.config.vocab_size) == (2, 16, 300)


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "naïve ☃ text\twith\nlines"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.encode(model.TURN_END, add_special_tokens=False) == [tokenizer.eos_token_id]


def test_the_chat_template_is_what_the_loss_is_measured_on(tokenizer: Any) -> None:
    question, answer = PAIRS[0]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ids, labels = evaluate.encode_turns(tokenizer, question, answer)
    assert tokenizer.apply_chat_template(messages, tokenize=False) == tokenizer.decode(ids)
    trained = [label for label in labels if label != evaluate.IGNORED_LABEL]
    assert tokenizer.decode(trained) == f"{answer}{model.TURN_END}\n"
    assert labels[-len(trained) :] == ids[-len(trained) :] == trained


@pytest.mark.filterwarnings("ignore:::")  # of importing ms-swift
def test_ms_swift_trains_on_the_same_tokens(folder: Path, tokenizer: Any) -> None:
    from swift.model import get_processor
    from swift.template import get_template

    template = get_template(get_processor(str(folder), model_type="qwen3"), template_type=model.SWIFT_TEMPLATE)
    template.set_mode("train")
    question, answer = PAIRS[0]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    encoded = template.encode({"messages": messages})
    assert (encoded["input_ids"], encoded["labels"]) == evaluate.encode_turns(tokenizer, question, answer)


def test_the_batched_loss_is_the_token_mean_of_single_sequences(
    folder: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, count = 0.0, 0
    for question, answer in PAIRS:
        ids, labels = evaluate.encode_turns(tokenizer, question, answer)
        with torch.no_grad():
            log_probabilities = loaded(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        for place, label in enumerate(labels[1:]):
            if label != evaluate.IGNORED_LABEL:
                total -= float(log_probabilities[place, label])
                count += 1
    monkeypatch.setattr(evaluate, "BATCH_SEQUENCES", 2)
    loss = evaluate.held_out_loss(folder, PAIRS)
    assert loss == pytest.approx(total / count, rel=1e-5)
    assert loss == pytest.approx(math.log(300), rel=0.1)  # random weights know nothing
