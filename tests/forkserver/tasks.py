"""What test_forkserver has the fork server run instead of a trainer."""

import os
import signal
import subprocess
import sys


def exit_with_own_code() -> None:
    """Rank n exits with the n-th number of the command line."""
    raise SystemExit(int(sys.argv[1 + int(os.environ["RANK"])]))


def fail() -> None:
    raise ValueError("on purpose")


def describe() -> None:
    environment = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "EXTRA"))
    print(sys.argv[1], *environment, os.getcwd())


def sleep_forever() -> None:
    print("asleep", flush=True)
    while True:
        signal.pause()


def sleep_with_child() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    print("child", child.pid, flush=True)
    child.wait()
