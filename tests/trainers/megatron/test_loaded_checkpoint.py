"""Which folder the job was resumed from, for every way in which ms-swift resumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from swift_diloco.trainers.megatron.loaded_checkpoint import loaded_checkpoint


def loaded(iteration: int = 4, **flags: object) -> Path | None:
    args: dict[str, object] = {
        "tuner_type": "full", "model": None, "adapters": [], "mcore_model": None, "mcore_adapter": None,
    }  # fmt: skip
    return loaded_checkpoint(SimpleNamespace(**(args | flags)), iteration)


def test_fresh_start_has_loaded_no_checkpoint() -> None:
    assert loaded(0, model="hub/model", mcore_model="/out/checkpoint-4") is None  # --finetune true


def test_megatron_checkpoint_goes_before_the_model_that_it_came_from() -> None:
    assert loaded(model="hub/model", mcore_model="/out/checkpoint-4") == Path("/out/checkpoint-4")


def test_safetensors_beside_an_iteration_tracker_are_a_checkpoint() -> None:
    assert loaded(model="/out/checkpoint-4") == Path("/out/checkpoint-4")


def test_adapter_goes_before_its_base_model() -> None:
    assert loaded(tuner_type="lora", model="/base", adapters=["/out/checkpoint-4"]) == Path("/out/checkpoint-4")
    assert loaded(tuner_type="lora", mcore_model="/base", mcore_adapter="/out/checkpoint-4") == Path(
        "/out/checkpoint-4"
    )
