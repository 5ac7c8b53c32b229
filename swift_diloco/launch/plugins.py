"""Installed plugins: entry points of the group `ms_swift.plugins`, each `NAME = module` of a file for ms-swift to load.

Knows neither ms-swift nor what a plugin does. Invariant: a plugin's module itself is never imported here.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.schema import nearest

GROUP = "ms_swift.plugins"
RLHF_REFUSAL = (
    "plugin diloco does not support `swift rlhf` yet; expected `swift sft`, `swift pt`, `megatron sft` or `megatron pt`"
)


def installed_plugins() -> dict[str, EntryPoint]:
    """Entry points by name, sorted."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name)}


def find_plugin(name: str, installed: Mapping[str, EntryPoint]) -> str:
    """The file of a plugin; raise `UserError` with what is installed."""
    entry = installed.get(name)
    if entry is None:
        shown = ", ".join(_described(each) for each in installed.values()) or "none"
        hint = f" (nearest: {nearest(name, installed)})" if installed else ""
        raise UserError(f"--plugin {name}: no such plugin; installed plugins: {shown}{hint}")
    try:
        spec = find_spec(entry.module)
    except ImportError as error:
        raise UserError(f"--plugin {name}: {_described(entry)} cannot be loaded: {error}") from error
    if spec is None or not spec.has_location or spec.origin is None:
        raise UserError(f"--plugin {name}: module {entry.module} of {_described(entry)} is not there; install it again")
    return spec.origin


def _described(entry: EntryPoint) -> str:
    """`diloco (swift-diloco 0.1.0)`."""
    return f"{entry.name} ({entry.dist.name} {entry.dist.version})" if entry.dist is not None else entry.name
