"""Names of trained tensors that do not depend on how peft wraps the model or what an adapter is called.

peft keeps `…q_proj.lora_A.default.weight`, and the trained copy of a saved module as
`…lm_head.modules_to_save.default.weight`; its export drops the adapter's name and the wrapper, and so does this module.
Knows strings only.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from swift_diloco.core.errors import UserError

WRAPPER = "modules_to_save"
"""The component by which peft marks the trained copy of a whole module."""

NAMED_PER_ADAPTER = ("lora_", "trainable_tokens_", WRAPPER)
"""Beginnings of the components that peft follows with the adapter's name."""


def exported_name(name: str, adapters: Set[str]) -> str:
    """The name of a parameter in an export of its model, adapters' names left out."""
    kept: list[str] = []
    before = ""
    for component in name.split("."):
        is_adapter = component in adapters and before.startswith(NAMED_PER_ADAPTER)
        if component != WRAPPER and not is_adapter:
            kept.append(component)
        before = component
    return ".".join(kept)


def exported_names(names: Iterable[str], adapters: Set[str]) -> dict[str, str]:
    """Exported name by parameter name. Raises `UserError` when two parameters would get one name."""
    exported: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        short = exported[name] = exported_name(name, adapters)
        other = owners.setdefault(short, name)
        if other != name:
            raise UserError(
                f"{other!r} and {name!r} are both trained and are both exported as {short!r}; expected one trained "
                "adapter: train one adapter at a time on islands"
            )
    return exported
