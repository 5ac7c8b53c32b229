"""The file that ms-swift loads by `--external_plugins`: it makes the callback `diloco` known.

It lies alone in its folder, because ms-swift puts the folder first on `sys.path`: any module beside it would hide one
of the same name from the whole process. Data-loader workers load it again, so it imports neither Megatron nor
transformers by itself: it registers with those parts of ms-swift that the process has loaded already, and the callback
is imported when a trainer asks for it.
"""

import sys
from typing import Any

from swift_diloco.core.errors import DilocoError, InternalError, exit_with

NAME = "diloco"


def make_megatron_callback(trainer: Any) -> Any:
    """What ms-swift's Megatron trainer calls to build the callback. A user's mistake is one line, not a traceback."""
    try:
        from swift_diloco.trainers.megatron.callback import DilocoCallback

        return DilocoCallback(trainer)
    except InternalError:
        raise
    except DilocoError as error:
        exit_with(error)


def make_transformers_callback(args: Any, trainer: Any) -> Any:
    """What ms-swift's transformers trainers call to build the callback."""
    try:
        from swift_diloco.trainers.hf.callback import DilocoCallback

        return DilocoCallback(args, trainer)
    except InternalError:
        raise
    except DilocoError as error:
        exit_with(error)


def register() -> None:
    """Add the callback to the map of the trainer this process is for."""
    if "swift.megatron" in sys.modules:
        from swift.megatron.callbacks import megatron_callbacks_map

        megatron_callbacks_map[NAME] = make_megatron_callback
    elif "swift.arguments" in sys.modules:
        from swift.callbacks import callbacks_map

        callbacks_map[NAME] = make_transformers_callback


register()
