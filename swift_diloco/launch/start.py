"""Tells from the command line whether this process is ms-swift's, and only then loads the rest of the hook.

Runs while Python starts, so it imports nothing that is not loaded already. Knows nothing of settings or plugins.
Invariant: in any process that is not ms-swift's it reads two lists, changes nothing and raises nothing.
"""

import os
import sys

from swift_diloco.launch.roles import COMMAND, HELPER, INTERNAL_CPU, MEGATRON, METHODS, SWIFT, TRAINER, Role

# `collections` and `typing` are not loaded yet when this runs; type checkers take the branch, Python does not.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OFF_WORDS = ("off", "0", "false", "no")

_SCRIPT_FOLDERS = {MEGATRON: "swift/cli/_megatron/", SWIFT: "swift/cli/"}
_COMMAND_MODULES = {MEGATRON: "swift.cli._megatron.main", SWIFT: "swift.cli.main"}


def run() -> None:
    """What the `.pth` file calls."""
    if os.environ.get("YETO_DILOCO_HOOK", "").lower() in OFF_WORDS:
        return
    role = role_of(getattr(sys, "argv", []), sys.orig_argv, os.environ)
    if role is not None:
        from swift_diloco.launch.prepare import prepare

        prepare(role)


def role_of(argv: "Sequence[str]", orig_argv: "Sequence[str]", environ: "Mapping[str, str]") -> Role | None:
    """The role of a process with this command line, or None when it is not ms-swift's."""
    if not argv:
        return None
    started = _started(argv, orig_argv)
    for family, folder in _SCRIPT_FOLDERS.items():
        module = folder.replace("/", ".")
        for method in METHODS[family]:
            if f"/{started}".endswith(f"/{folder}{method}.py") or started == module + method:
                return Role(TRAINER, family, method)
    for family, module in _COMMAND_MODULES.items():
        if started == module or started.endswith(("/bin/" + family, "/" + module.replace(".", "/") + ".py")):
            method = argv[1].replace("_", "-") if len(argv) > 1 else ""
            return Role(COMMAND, family, method) if method in METHODS[family] else None
    if INTERNAL_CPU in environ and any("multiprocessing" in word for word in orig_argv[1:]):
        return Role(HELPER, MEGATRON, "")
    return None


def _started(argv: "Sequence[str]", orig_argv: "Sequence[str]") -> str:
    """The script's path or the module's name. While Python starts, `argv[0]` is `-m` and the name is not in argv."""
    if argv[0] != "-m":
        return argv[0].replace("\\", "/")
    word = orig_argv[len(orig_argv) - len(argv)]
    return word.partition("m")[2] if word.startswith("-") else word
