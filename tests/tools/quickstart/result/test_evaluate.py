"""evaluate.py without a model: exports and digests."""

from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from swift_diloco.tools.quickstart.errors import QuickstartError
from swift_diloco.tools.quickstart.result.evaluate import newest_export, tensor_digest

Tensors = dict[str, numpy.ndarray]
ONE: Tensors = {"a": numpy.arange(6, dtype=numpy.float32), "b": numpy.ones((2, 3), dtype=numpy.float32)}


def digest(folder: Path, *files: Tensors) -> str:
    folder.mkdir()
    for index, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{index}.safetensors")
    return tensor_digest(folder)


def test_the_digest_does_not_depend_on_the_cut_into_files(tmp_path: Path) -> None:
    whole = digest(tmp_path / "whole", ONE)
    assert whole == digest(tmp_path / "cut", {"b": ONE["b"]}, {"a": ONE["a"]})
    assert len(whole) == 32


@pytest.mark.parametrize(
    "other",
    [
        {**ONE, "a": numpy.nextafter(ONE["a"], numpy.float32(9))},
        {"c": ONE["a"], "b": ONE["b"]},
        {**ONE, "a": ONE["a"].reshape(2, 3)},
        {**ONE, "a": ONE["a"].view(numpy.int32)},
        {"b": ONE["b"]},
    ],
    ids=["a last bit", "a name", "a shape", "a type", "one less"],
)
def test_the_digest_sees_every_difference(tmp_path: Path, other: Tensors) -> None:
    assert digest(tmp_path / "one", ONE) != digest(tmp_path / "other", other)


def test_no_tensors_and_tensors_twice_are_told(tmp_path: Path) -> None:
    with pytest.raises(QuickstartError, match="no tensors in"):
        digest(tmp_path / "none")
    with pytest.raises(QuickstartError, match="tensor a is twice in"):
        digest(tmp_path / "twice", {"a": ONE["a"]}, {"a": ONE["b"]})


def test_the_newest_export_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step in (9, 30, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
        if step < 200:  # one that was not finished
            save_file(ONE, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    assert newest_export(tmp_path).name == "checkpoint-30"
    with pytest.raises(QuickstartError, match="no exported model under"):
        newest_export(tmp_path / "checkpoint-30")
