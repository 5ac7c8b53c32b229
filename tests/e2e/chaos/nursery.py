"""Forks fake islands from a process that has imported everything: each is a process of its own, ready in milliseconds.

As a program it takes one JSON object a line on stdin (`Birth`) and tells `{"pid": …}` and, at an end, `{"pid": …,
"code": …}` on stdout; when stdin ends, it kills what is left. `Nursery` is its client.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

LOOK_S = 0.005
"""Time between two looks at whether a child has ended."""

READY_S = 120.0
"""For the imports, on a busy machine."""


class Birth(msgspec.Struct, frozen=True):
    """An island to start."""

    job: dict[str, Any]
    stdout: str
    stderr: str


class Nursery:
    """Starts fake islands. A context manager; no island outlives it."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.chaos.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        self._rest = b""
        self._ended: dict[int, int] = {}
        self._wait_for("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        self._process.wait(READY_S)
        self._out.close()

    def start(self, job: msgspec.Struct, stdout: Path, stderr: Path) -> int:
        """The process id of a new island that runs the job."""
        birth = Birth(msgspec.to_builtins(job), str(stdout), str(stderr))
        self._in.write(msgspec.json.encode(birth) + b"\n")
        self._in.flush()
        return int(self._wait_for("born")["born"])

    def ended(self) -> dict[int, int]:
        """Exit codes by process id of the islands that have ended since the last call; -n: by signal n."""
        while select.select([self._out], [], [], 0)[0]:
            self._read()
        ended, self._ended = self._ended, {}
        return ended

    def _wait_for(self, key: str) -> dict[str, Any]:
        while True:
            assert select.select([self._out], [], [], READY_S)[0], f"the nursery does not say {key!r}"
            for row in self._read():
                if key in row:
                    return row

    def _read(self) -> list[dict[str, Any]]:
        data = os.read(self._out.fileno(), 65536)
        assert data, "the nursery has died"
        *lines, self._rest = (self._rest + data).split(b"\n")
        rows = [json.loads(line) for line in lines]
        self._ended.update({row["pid"]: row["code"] for row in rows if "code" in row})
        return rows


def main() -> None:
    """The program."""
    import torch

    import tests.fakes.island  # noqa: F401 (imported before the first fork)

    torch.set_num_threads(1)
    children: set[int] = set()
    _say(ready=True)
    rest = b""
    while True:
        if select.select([0], [], [], LOOK_S)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                children.add(_bear(msgspec.json.decode(line, type=Birth)))
        _reap(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


def _bear(birth: Birth) -> int:
    pid = os.fork()
    if pid == 0:
        _live(birth)
    _say(born=pid)
    return pid


def _live(birth: Birth) -> NoReturn:
    """The child: an island with its output in files."""
    import logging
    import traceback

    from swift_diloco.core.errors import DilocoError
    from tests.fakes.island import Job, run_as_process

    code = 0
    try:
        for number, path in ((1, birth.stdout), (2, birth.stderr)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", force=True)
        run_as_process(msgspec.convert(birth.job, Job))
    except DilocoError as error:
        print(error, file=sys.stderr, flush=True)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _reap(children: set[int]) -> None:
    for child in list(children):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            children.remove(child)
            _say(pid=child, code=os.waitstatus_to_exitcode(status))


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
