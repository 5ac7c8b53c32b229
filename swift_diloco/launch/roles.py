"""What a process of ms-swift is to us: the outer command, a trainer, or a helper. Imports nothing."""

INTERNAL_CPU = "YETO_DILOCO_INTERNAL_CPU"
"""Set by a trainer on the CPU platform, so that the helper processes it spawns get the platform too."""

MEGATRON = "megatron"

SWIFT = "swift"

COMMAND = "command"
"""`megatron sft …`: reads a YAML file, then starts the trainer or torchrun of it."""

TRAINER = "trainer"
"""`python …/swift/cli/_megatron/sft.py …`, one rank of a job."""

HELPER = "helper"
"""A process that a trainer on the CPU platform spawned by `multiprocessing`."""

METHODS = {MEGATRON: ("sft", "pt", "rlhf", "export"), SWIFT: ("sft", "pt", "rlhf")}

TRAINING_METHODS = ("sft", "pt", "rlhf")


class Role:
    """What a process is to us: its role, the family of ms-swift commands it belongs to, and the method (`sft` …)."""

    __slots__ = ("family", "method", "name")

    def __init__(self, name: str, family: str, method: str) -> None:
        self.name = name
        self.family = family
        self.method = method

    def __repr__(self) -> str:
        return f"Role({self.name!r}, {self.family!r}, {self.method!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Role) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]
