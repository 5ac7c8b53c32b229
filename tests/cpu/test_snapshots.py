"""What a checkpoint is going to write does not change with training."""

from types import ModuleType
from typing import Any

import torch

from swift_diloco.cpu.snapshots import Bucket, copy_before_writing


class Writer:
    """Megatron's writer as far as it matters: it keeps the tensors it is given."""

    def __init__(self) -> None:
        self.write_buckets: list[Bucket] = []

    def prepare_write_data(self, tensors: list[torch.Tensor], *, name: str) -> None:
        items: list[tuple[Any, torch.Tensor]] = [(index, tensor) for index, tensor in enumerate(tensors)]
        self.write_buckets = [("/path", name, (["object"], items))]


def test_prepared_data_stays_as_it_was_when_training_goes_on() -> None:
    module = ModuleType("filesystem_async")
    vars(module)["FileSystemWriterAsync"] = type("FileSystemWriterAsync", (Writer,), {})
    copy_before_writing(module)
    writer, tensor = module.FileSystemWriterAsync(), torch.ones(2)
    writer.prepare_write_data([tensor], name="file")
    tensor.mul_(7)
    [(path, key, (objects, [(item, saved)]))] = writer.write_buckets
    assert (path, key, objects, item) == ("/path", "file", ["object"], 0)
    assert torch.equal(saved, torch.ones(2))
