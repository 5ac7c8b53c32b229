"""FusedAdam, FusedSGD and the multi-tensor helpers of transformer_engine.pytorch.optimizers.

Megatron's distributed optimizer keeps Adam's `step` where Transformer Engine keeps it, in the param groups, and writes
it to checkpoints from there; with torch's own Adam (one step per parameter) such a checkpoint cannot be loaded.
Invariant: `step` counts the updates of a group that had gradients, and is the same for all its parameters.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from swift_diloco.cpu.errors import refuse_options, unsupported

# Options of Transformer Engine's FusedAdam that only say how its kernels run.
_KERNEL_OPTIONS = frozenset({"set_grad_none", "capturable"})


class FusedAdam(torch.optim.Optimizer):
    """Adam and AdamW on FP32 parameters, with `step` in the param groups."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), **options: Any
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": options.pop("eps", 1e-8),
            "weight_decay": options.pop("weight_decay", 0.0),
            "bias_correction": options.pop("bias_correction", True),
        }
        if not defaults["bias_correction"]:
            raise unsupported("FusedAdam(bias_correction=False)")
        self._update = adamw if options.pop("adam_w_mode", True) else adam
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "master_weight_dtype"):
            if options.pop(name, torch.float32) != torch.float32:
                raise unsupported(f"optimizer state with {name} other than float32")
        if options.pop("store_param_remainders", False) and options.get("master_weights"):
            raise unsupported("precision-aware optimizer", "use --use_precision_aware_optimizer false")
        refuse_options("FusedAdam", {name: value for name, value in options.items() if name not in _KERNEL_OPTIONS})
        super().__init__(params, defaults)

    def initialize_state(self, parameter: torch.Tensor, *_: object) -> None:
        """Zero moments for one parameter; Megatron calls it before it loads a checkpoint."""
        self.state[parameter] = {
            "exp_avg": torch.zeros_like(parameter, dtype=torch.float32),
            "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not group["params"]:
            return
        done = int(group.get("step", 0))
        group["step"] = done + 1
        for parameter in parameters:
            if not self.state[parameter]:
                self.initialize_state(parameter)
        states = [self.state[parameter] for parameter in parameters]
        self._update(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [torch.tensor(float(done)) for _ in parameters],
            foreach=False,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class FusedSGD(torch.optim.SGD):
    """Torch's SGD; Transformer Engine's has no other arithmetic."""


def multi_tensor_applier(
    operation: Callable[..., Any], overflow: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], *arguments: Any
) -> Any:
    """Run `operation` on lists of tensors; the chunk size that CUDA kernels want does not matter here."""
    return operation(0, overflow, lists, *arguments)


def multi_tensor_scale(
    chunk_size: int, overflow: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], scale: float | torch.Tensor
) -> None:
    """Second list := first list * scale, casting; sets `overflow` when a source is not finite."""
    del chunk_size
    for source, target in zip(lists[0], lists[1], strict=True):
        if not bool(torch.isfinite(source).all()):
            overflow.fill_(1)
        target.copy_(source if isinstance(scale, float) and scale == 1.0 else source * scale)


def multi_tensor_l2norm(
    chunk_size: int, overflow: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], per_tensor: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The norm over all tensors (shape [1]) and, when asked for, one norm per tensor."""
    del chunk_size, overflow
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in lists[0]]
    each = torch.stack(norms) if norms else torch.zeros(0)
    return torch.linalg.vector_norm(each).reshape(1), each if per_tensor else None
