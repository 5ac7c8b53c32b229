"""What an operator asks of a syncer, and what it answers."""

from __future__ import annotations

from enum import Enum

import msgspec


class AdminCommand(Enum):
    """What an operator asks of the syncer."""

    STATUS = "status"
    """Tell what it does."""
    SAVE = "save"
    """Have islands save at their next boundary."""
    SAVE_AND_STOP = "save_and_stop"
    """Have islands save at their next boundary and end."""
    ABORT = "abort"
    """Have islands end at their next boundary without a save."""
    SET = "set"
    """Change settings while running."""
    KICK = "kick"
    """End the membership of an island."""
    CHECKPOINT = "checkpoint"
    """Write a checkpoint now."""
    STOP = "stop"
    """Stop gracefully, as SIGTERM does."""
    STORY = "story"
    """Tell what its brain did last."""


class Order(Enum):
    """What an operator has every island, or one, do at its next boundary."""

    SAVE = "save"
    SAVE_AND_STOP = "save_and_stop"
    ABORT = "abort"


class AdminRequest(msgspec.Struct, frozen=True, tag=True):
    """An operator's request, on a connection of its own. Belongs to no session; answered by one `AdminReply`."""

    nonce: str
    """Repeated in the answer."""
    token: str
    """The run folder's admin token; empty where the connection's own key says who speaks."""
    command: AdminCommand
    island: int | None = None
    """The island that is meant; None: every one."""
    changes: tuple[tuple[str, str], ...] = ()
    """Settings and their new values, as a person writes them."""
    reason: str = ""


class AdminReply(msgspec.Struct, frozen=True, tag=True):
    """What became of an operator's request. `status` is JSON, only for STATUS and STORY."""

    session: str
    nonce: str
    done: bool
    text: str
    status: str = ""
