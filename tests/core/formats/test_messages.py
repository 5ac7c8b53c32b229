"""What every message has."""

from __future__ import annotations

from typing import get_args

from swift_diloco.core.formats import messages as m
from swift_diloco.core.formats.operator_messages import AdminReply, AdminRequest

ABOUT_JOINING = {m.Hello, m.LayoutWanted, m.Refused}
OPERATORS = {AdminRequest, AdminReply}
ALL = {*get_args(m.IslandMessage), *get_args(m.SyncerMessage)}
ON_THE_WIRE: dict[type, str] = {m.PauseOver: "Resumed"}
"""Messages whose name on the wire is older than that of their class."""


def test_every_message_but_those_about_joining_says_in_which_session_and_generation() -> None:
    assert {kind for kind in ALL if not issubclass(kind, m.InGeneration)} == ABOUT_JOINING | OPERATORS
    for kind in ALL - ABOUT_JOINING - OPERATORS:
        assert kind.__struct_fields__[:2] == ("session", "generation"), kind


def test_messages_are_frozen_and_told_apart_by_their_names() -> None:
    for kind in ALL:
        assert kind.__struct_config__.frozen and kind.__struct_config__.tag == ON_THE_WIRE.get(kind, kind.__name__)
