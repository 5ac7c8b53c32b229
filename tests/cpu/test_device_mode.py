"""Calls that name a GPU end on the CPU."""

import pytest
import torch

from swift_diloco.cpu.device_mode import CudaIsCpu, is_cuda, to_cpu


def test_gpus_are_recognised_by_name_and_as_devices() -> None:
    assert is_cuda("cuda") and is_cuda("cuda:1") and is_cuda(torch.device("cuda", 0))
    assert not any(is_cuda(device) for device in ("cpu", "meta", None, 0, torch.device("cpu")))
    assert to_cpu("cuda:0") == "cpu" and to_cpu("meta") == "meta"


def test_tensors_are_made_and_moved_on_the_cpu() -> None:
    with CudaIsCpu():
        tensors = [
            torch.zeros(2, device="cuda"),
            torch.tensor([1.0], device=torch.device("cuda", 0)),
            torch.zeros(2).to("cuda"),
            torch.zeros(2).to(device="cuda:0", dtype=torch.bfloat16),
            torch.zeros(2).new_empty(2, device="cuda"),
        ]
    assert [tensor.device.type for tensor in tensors] == ["cpu"] * 5
    assert tensors[3].dtype == torch.bfloat16


def test_tensor_types_read_as_those_of_cuda() -> None:
    with CudaIsCpu():
        assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
        assert torch.zeros(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
        assert torch.zeros(1).type(torch.float64).dtype == torch.float64
    assert torch.zeros(1).type() == "torch.FloatTensor"


def test_the_meta_device_still_works() -> None:
    with CudaIsCpu(), torch.device("meta"):
        assert torch.zeros(2).is_meta and torch.empty(2, device="cuda").device.type == "cpu"


def test_other_arguments_reach_torch_unchanged() -> None:
    with CudaIsCpu(), pytest.raises(RuntimeError):
        torch.zeros(2, device="no such device")
