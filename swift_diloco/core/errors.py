"""The errors of the project: the type says whose fault it is, and so what to do with it.

    DilocoError                        whatever this project raises on purpose; exit code 1
      UserError                        the user's: one line, exit code 2, no traceback
        TapeError                      core.formats.tape_lines
        StatusError                    core.formats.status
        StoryError                     core.story.frozen
        CpuPlatformError               cpu.errors
          UnsupportedOnCpuError        cpu.errors
      PeerError                        the other side's: it is told, dropped, and stops nobody else
        WireError                      core.formats.frames
      DiskError                        a disk's: what was written before is used, or nothing, and that is told
        Damaged                        core.files.checkpoint_files
        UnusableRecord                 island.files.record_files
      InternalError                    ours: it keeps its traceback
      QuickstartError                  nobody's: the demonstration did not work out; tools.quickstart.errors
        ProcessFailed                  tools.quickstart.jobs.supervisor

Knows nothing of sockets, trainers or command lines. A message says what was found, what was expected, where, and
what to do; it is one paragraph, readable without the traceback.
"""

from typing import ClassVar, NoReturn

USER_MISTAKE_EXIT_CODE = 2
"""Exit code of a user's mistake, as `argparse` and most shells' tools use it."""


class DilocoError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code: ClassVar[int] = 1


class UserError(DilocoError):
    """A mistake in what the user gave: a flag, a file, an address, a layout. One line and exit code 2, no traceback."""

    exit_code: ClassVar[int] = USER_MISTAKE_EXIT_CODE


class PeerError(DilocoError):
    """The other side broke a rule or is not there. It concerns that peer alone and never stops anybody else."""


class DiskError(DilocoError):
    """A file is not what was written. Who reads it falls back to an older one, or goes on without, and says so."""


class InternalError(DilocoError):
    """A rule of our own is broken, in a way no user, peer or disk can cause. It keeps its traceback."""


def one_line(error: BaseException) -> str:
    """The message of an error as one line, for a terminal."""
    return " ".join(str(error).split())


def exit_with(error: DilocoError, program: str = "swift-diloco") -> NoReturn:
    """Leave the process on `error`: one line on stderr and the error's exit code. Finally-blocks and atexit run."""
    import sys

    print(f"{program}: error: {one_line(error)}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code)
