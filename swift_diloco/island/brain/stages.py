"""The states of an island's session, and what it is told of its own job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Membership(Enum):
    """Where the island stands with the syncer."""

    DIALING = "dialing"
    """Said Hello, not welcomed yet."""
    JOINING = "joining"
    """Welcomed; its ranks introduce themselves."""
    MEMBER = "member"
    """All boxes tile the layout: pulls may come."""


class Stage(Enum):
    """Where the island's training stands."""

    WAITING_FOR_CUT = "waiting for the initial values"
    TRAINING = "training"
    DONE = "done, waiting for the final cut"
    FINISHED = "finished"


@dataclass(frozen=True)
class Profile:
    """What a session knows of its own job."""

    island: int
    life: str
    """A random token of this process, the same on all ranks of the island."""
    step: int = 0
    """The local step it starts from."""
    initial_cut_timeout_s: float = 3600.0
    """How long a start waits for global values; 0 trains at once and installs them at boundaries."""
    init_probe_s: float = 1800.0
    """How long a syncer without state must ask an island that has global values before it gets them."""
    heartbeats: bool = True
    """Heartbeats are sent, so a syncer from which nothing comes is silent."""
