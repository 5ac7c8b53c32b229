"""Copies what an asynchronous checkpoint is going to write, before training goes on.

Megatron's writer hands tensors to another process and trusts the copy from the GPU to host memory to be the snapshot.
A CPU tensor that owns its storage is not copied at all (`_clone_if_needed` in megatron/core/dist_checkpointing/
strategies/filesystem_async.py): the persistent worker gets it by shared memory and writes whatever the next steps have
made of it (seen: a checkpoint with the optimizer state of a later step).
"""

import functools
from types import ModuleType
from typing import Any

import torch

MODULE = "megatron.core.dist_checkpointing.strategies.filesystem_async"

# As in Megatron: path, storage key, (objects, tensors), each of the two a list of (write item, data).
Bucket = tuple[Any, str, tuple[list[Any], list[tuple[Any, torch.Tensor]]]]


def copy_before_writing(filesystem_async: ModuleType) -> None:
    """Make the writer of that module keep copies."""
    writer = filesystem_async.FileSystemWriterAsync
    original = writer.prepare_write_data

    @functools.wraps(original)
    def prepare_write_data(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.write_buckets = [copied(bucket) for bucket in self.write_buckets]

    writer.prepare_write_data = prepare_write_data


def copied(bucket: Bucket) -> Bucket:
    """The bucket with tensors that nobody else can change."""
    path, key, (objects, tensors) = bucket
    return path, key, (objects, [(item, tensor.clone()) for item, tensor in tensors])
