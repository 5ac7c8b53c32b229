"""Export of checkpoints whose tensors have the names of transformers, and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from swift_diloco.cli import main
from swift_diloco.core.formats.manifest import SavedState, Shape
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import fragment_elements, plan_fragments
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.digest import fragment_digest
from swift_diloco.tools.export.tensors import is_megatron

SHAPES = {"model.embed.weight": (4, 2), "model.norm.weight": (2,), "lm_head.weight": (4, 2)}


def save_checkpoint(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A checkpoint whose tensor number i is filled with i + 0.5."""
    import importlib

    store_type = importlib.import_module("syncer.files.store")
    layout = make_layout(TensorSpec(name, shape, "avg") for name, shape in shapes.items())
    plan = plan_fragments(layout, 2, "binpack")
    store = store_type.Store(folder, 2)
    names, entries = [], []
    shape = store.write_shape(Shape(layout, plan))
    for fragment, group in enumerate(plan.fragments):
        parts = [np.full(layout.tensors[i].elements, i + 0.5, np.float32) for i in group]
        values = np.concatenate(parts)
        assert values.size == fragment_elements(layout, plan, fragment)
        name = ValueName(fragment, 3, fragment_digest(values))
        names.append(name)
        entries.append(store.write_fragment(name, store_type.Part(values, None)))
    state = SavedState("run", 3, layout.fingerprint, tuple(names), tuple((name,) for name in names))
    store.write_manifest(state, shape, (entries, []))


def save_base(folder: Path) -> None:
    """A model of two files, its head in a file of its own."""
    folder.mkdir()
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    head = {"lm_head.weight": tensors.pop("lm_head.weight"), "frozen.weight": torch.ones(3)}
    save_file(tensors, folder / "model-1.safetensors", metadata={"format": "pt"})
    save_file(head, folder / "model-2.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    (folder / "tokenizer.json").write_text("{}")


def test_trained_tensors_are_exchanged_and_all_else_is_as_in_the_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path / "saved", SHAPES)
    save_base(tmp_path / "base")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "saved"), "--hf", str(tmp_path / "base"), "--out", str(out)]) == 0
    assert "exporting 3 tensors of outer step 3 of run run" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "base").iterdir()}
    first, second = load_file(out / "model-1.safetensors"), load_file(out / "model-2.safetensors")
    assert torch.equal(second["frozen.weight"], torch.ones(3))
    for number, name in enumerate(sorted(SHAPES)):
        tensor = (first | second)[name]
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, torch.full(SHAPES[name], number + 0.5).bfloat16())


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({**SHAPES, "other.weight": (3,)}, "the checkpoint has a tensor 'other.weight', which --hf"),
        ({**SHAPES, "model.norm.weight": (3,)}, "tensor 'model.norm.weight' has shape [3] in the checkpoint and [2]"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shapes: dict[str, tuple[int, ...]], said: str
) -> None:
    save_checkpoint(tmp_path / "saved", shapes)
    save_base(tmp_path / "base")
    words = ["export", str(tmp_path / "saved"), "--hf", str(tmp_path / "base"), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_mistakes_in_the_command_line_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_base(tmp_path / "base")
    saved, base, out = (str(tmp_path / name) for name in ("saved", "base", "out"))
    assert main(["export", saved, "--hf", saved, "--out", out]) == 2
    assert "is no folder of a model: it has no config.json" in capsys.readouterr().err
    assert main(["export", saved, "--hf", base, "--out", base]) == 2
    assert "exists already; give a folder that does not" in capsys.readouterr().err
    assert main(["export", saved, "--hf", base, "--out", out]) == 2
    assert "holds no checkpoint of a syncer" in capsys.readouterr().err


def test_names_tell_which_trainer_the_islands_were() -> None:
    assert is_megatron(["decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"])
    assert not is_megatron(list(SHAPES))
