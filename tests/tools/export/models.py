"""A checkpoint of a syncer and the model that it belongs to, with the names of transformers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from swift_diloco.core.formats.manifest import SavedState, Shape
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import fragment_elements, plan_fragments
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.digest import fragment_digest

SHAPES = {"model.embed.weight": (4, 2), "model.norm.weight": (2,), "lm_head.weight": (4, 2)}


def save_checkpoint(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A checkpoint whose tensor number i is filled with i + 0.5."""
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
        entries.append(store.write_fragment(name, store_type.FragmentPart(values, None)))
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
