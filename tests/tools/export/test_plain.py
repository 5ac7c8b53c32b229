"""Export of checkpoints whose tensors have the names of transformers, and what the command refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swift_diloco.cli import main
from tests.tools.export.models import SHAPES, save_base, save_checkpoint


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
