"""A checkpoint's fragments put together to tensors again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swift_diloco.tools.export.tensors import is_megatron, load_tensors
from tests.tools.export.models import SHAPES, save_checkpoint


def test_tensors_have_their_names_shapes_and_values_and_are_named_by_their_step(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, SHAPES)
    tensors, what = load_tensors(tmp_path)
    assert what == "outer step 3 of run run"
    assert {name: values.shape for name, values in tensors.items()} == SHAPES
    for number, name in enumerate(sorted(SHAPES)):
        np.testing.assert_array_equal(tensors[name], np.full(SHAPES[name], number + 0.5, np.float32))


def test_names_tell_which_trainer_the_islands_were() -> None:
    assert is_megatron(["decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"])
    assert not is_megatron(list(SHAPES))
