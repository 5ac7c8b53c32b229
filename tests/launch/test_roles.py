"""Roles of processes are values."""

from swift_diloco.launch.roles import MEGATRON, SWIFT, TRAINER, Role


def test_roles_are_equal_when_all_they_say_is_equal() -> None:
    role = Role(TRAINER, MEGATRON, "sft")
    assert role == Role(TRAINER, MEGATRON, "sft") and role != Role(TRAINER, SWIFT, "sft")
    assert role != Role(TRAINER, MEGATRON, "pt") and role != "Role('trainer', 'megatron', 'sft')"
    assert repr(role) == "Role('trainer', 'megatron', 'sft')"
