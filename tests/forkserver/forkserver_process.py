"""The process behind ForkServer: imports the trainer once, then forks one process per rank for each job.

Run as `python -m tests.forkserver.forkserver_process FD FAMILY`; FD is a socket to the client with one JSON object a
line, FAMILY what is imported: the trainer of an ms-swift command (`megatron` or `swift`) or the fake islands
(`fake`). Requests: {"op": "start", "job", "entry", "argv", "cwd", "logs", "ranks": [environment, ...]}, {"op":
"kill", "job", "rank", "signal"}. Events: {"event": "ready"}, {"event": "started", "job", "pids"}, {"event": "exited",
"job", "rank", "returncode"}.
Invariants: it has one thread whenever it forks; every rank leads its own session, so that a kill reaches its helpers;
when the client is gone, it kills what is left and ends.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

TRAINER_ENTRIES = ("sft", "pt")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Rank:
    """A running process of a job."""

    job: int
    rank: int
    pid: int


class Server:
    """Forks, reaps and kills; run() returns in the server with None, and in a forked rank with what it has to do."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = b""
        self._ranks: dict[int, Rank] = {}
        self._wakeup_read, self._wakeup_write = socket.socketpair()
        self._wakeup_write.setblocking(False)

    def run(self) -> Callable[[], None] | None:
        signal.set_wakeup_fd(self._wakeup_write.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._send({"event": "ready"})
        while True:
            readable, _, _ = select.select([self._channel, self._wakeup_read], [], [])
            if self._wakeup_read in readable:
                self._wakeup_read.recv(_READ_BYTES)
            self._reap()
            if self._channel in readable:
                received = self._channel.recv(_READ_BYTES)
                if not received:
                    self._kill_everything()
                    return None
                *lines, self._buffer = (self._buffer + received).split(b"\n")
                for line in lines:
                    task = self._handle(json.loads(line))
                    if task is not None:
                        return task

    def _handle(self, request: dict[str, Any]) -> Callable[[], None] | None:
        if request["op"] == "start":
            return self._start(request)
        for rank in self._ranks.values():
            if rank.job == request["job"] and request["rank"] in (rank.rank, None):
                _kill_session(rank.pid, request["signal"])
        return None

    def _start(self, request: dict[str, Any]) -> Callable[[], None] | None:
        threads = [
            Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")
        ]
        if len(threads) != 1:
            raise RuntimeError(f"the fork server has the threads {threads}, of which a fork would keep only one")
        for index, environment in enumerate(request["ranks"]):
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                self._leave_server()
                return lambda: _become_rank(request, environment, request["logs"][index])
            self._ranks[pid] = Rank(job=request["job"], rank=index, pid=pid)
        pids = [rank.pid for rank in self._ranks.values() if rank.job == request["job"]]
        self._send({"event": "started", "job": request["job"], "pids": pids})
        return None

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            if rank is None:
                continue
            _kill_session(pid, signal.SIGKILL)  # helpers that outlived it
            returncode = os.waitstatus_to_exitcode(status)
            self._send({"event": "exited", "job": rank.job, "rank": rank.rank, "returncode": returncode})

    def _kill_everything(self) -> None:
        for pid in self._ranks:
            _kill_session(pid, signal.SIGKILL)

    def _leave_server(self) -> None:
        """In the fork: give back what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._channel, self._wakeup_read, self._wakeup_write):
            each.close()

    def _send(self, event: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(event).encode() + b"\n")


def _kill_session(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):  # it was forked a moment ago and leads no session yet
            os.kill(pid, number)


def _become_rank(request: dict[str, Any], environment: dict[str, str], log: str) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.update(environment)
    _call_entry(request["entry"], request["argv"])


def _call_entry(entry: str, argv: list[str]) -> None:
    """`sft` and `pt` are ms-swift's scripts, started as the installed hook would see them; others are
    `module:function`, called without arguments and with `argv` as the command line."""
    if entry not in TRAINER_ENTRIES:
        module, _, function = entry.partition(":")
        sys.argv = [module, *argv]
        getattr(importlib.import_module(module), function)()
        return
    if _family() == "swift":
        _call_plain_swift(entry, argv)
        return
    import swift.megatron

    from swift_diloco.launch.prepare import prepare
    from swift_diloco.launch.roles import MEGATRON, TRAINER, Role

    script = os.path.join(os.path.dirname(os.path.dirname(swift.megatron.__file__)), "cli", "_megatron", f"{entry}.py")
    sys.argv = [script, *argv]
    prepare(Role(TRAINER, MEGATRON, entry))
    main = "megatron_sft_main" if entry == "sft" else "megatron_pretrain_main"
    getattr(swift.megatron, main)()


def _call_plain_swift(entry: str, argv: list[str]) -> None:
    import swift
    from swift.pipelines import pretrain_main, sft_main

    from swift_diloco.launch.prepare import prepare
    from swift_diloco.launch.roles import SWIFT, TRAINER, Role

    sys.argv = [os.path.join(os.path.dirname(swift.__file__), "cli", f"{entry}.py"), *argv]
    prepare(Role(TRAINER, SWIFT, entry))
    (sft_main if entry == "sft" else pretrain_main)()


def _family() -> str:
    return sys.orig_argv[-1]


def import_trainer() -> None:
    """Everything that a training run would import, so that a fork has it."""
    if _family() == "swift":
        _import_plain_swift()
        return
    if _family() == "fake":
        importlib.import_module("tests.fakes.island")
        return
    from swift_diloco.cpu import install

    install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, on import; a rank shows those of its own run
        import swift.megatron

        for name in ("megatron_sft_main", "megatron_pretrain_main", "MegatronTrainer"):
            getattr(swift.megatron, name)  # the package imports its parts when they are asked for


def _import_plain_swift() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
        import torch.utils.tensorboard
        import transformers.models.qwen3.modeling_qwen3
        from swift.pipelines import pretrain_main, sft_main
        from swift.trainers import Seq2SeqTrainer

        import swift_diloco.trainers.hf.callback

        loaded = (peft, torch, transformers, pretrain_main, sft_main, Seq2SeqTrainer, swift_diloco)
        assert all(loaded)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_trainer()
    gc.collect()
    gc.freeze()  # a collection in a rank does not look at, and so does not copy, what is shared with the server
    task = Server(channel).run()
    if task is not None:
        end_rank(task)


def end_rank(task: Callable[[], None]) -> NoReturn:
    """Do the task and end as Python ends, but without taking thousands of modules apart, which takes 2 s."""
    try:
        task()
        code: object = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # as the interpreter does it, with the traceback on stderr
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":  # helpers that a rank spawns import this file again
    main()
