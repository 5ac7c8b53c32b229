"""Environment variables that the CPU platform sets when the user did not, for this process and its children."""

from collections.abc import MutableMapping

PLATFORM_VARIABLE = "YETO_DILOCO_PLATFORM"
PLATFORM = "cpu"

DEFAULTS = {
    # torch.compile would compile for a GPU that is not there, and takes minutes on a CPU.
    "TORCHDYNAMO_DISABLE": "1",
    # Many ranks share few cores: one thread each. (torchrun does the same.)
    "OMP_NUM_THREADS": "1",
    # Megatron asserts it for tensor parallelism; ms-swift sets it too.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Tokenisers warn, and may hang, when a process that used their threads is forked (checkpoint writers are).
    "TOKENIZERS_PARALLELISM": "false",
}


def set_defaults(environment: MutableMapping[str, str]) -> None:
    """Fill in what is not set, and mark the platform so that processes started from here use it too."""
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
    environment[PLATFORM_VARIABLE] = PLATFORM
