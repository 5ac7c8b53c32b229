"""Errors of the CPU platform: each says what was asked for, why a CPU cannot do it, and what to use instead."""

from swift_diloco.core.errors import UserError


class CpuPlatformError(UserError):
    """The CPU platform cannot be used as asked; the message is for the user and fits on one line."""


class UnsupportedOnCpuError(CpuPlatformError):
    """A feature of Transformer Engine, Triton or CUDA was used which has no stand-in on a CPU.

    It is made from a message alone, because Megatron makes errors again with a longer message.
    """


def unsupported(feature: str, instead: str = "") -> UnsupportedOnCpuError:
    """The error that names `feature`, and what to use instead."""
    advice = f"; {instead}" if instead else ""
    return UnsupportedOnCpuError(f"{feature} is not supported on the CPU platform{advice}")


def refuse_options(owner: str, options: dict[str, object]) -> None:
    """Raise for the first option that is switched on; an option that is off (None, False, 0, empty) is harmless."""
    for name in sorted(options):
        if options[name]:
            raise unsupported(f"{owner}({name}={options[name]!r})")
