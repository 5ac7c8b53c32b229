"""Settings that an operator changed while the run went on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from swift_diloco.core.settings.syncer_settings import SYNCER_FIELDS
from syncer.brain.memory.state import State

CHANGEABLE = {name: SYNCER_FIELDS[name] for name in ("min_islands", "quorum")}
"""Settings that may change while the run goes on."""


def apply_overrides(state: State, overrides: Mapping[str, int]) -> None:
    """Change settings, now or after a restart, and remember that they were changed."""
    known = {name: value for name, value in overrides.items() if name in CHANGEABLE}
    state.settings = msgspec.structs.replace(state.settings, **known)
    state.overrides.update(known)
