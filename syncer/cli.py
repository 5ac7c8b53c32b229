"""`swift-diloco-syncer`: from a command line to a serving syncer, and back to an exit code.

The only place of the syncer that reads the environment of a process: signals, files, logging. Exit codes: 0 done, 1
our own fault or a failed run, 2 a user's mistake.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swift_diloco.core.errors import UserError, one_line
from swift_diloco.core.files.checkpoint_files import Intact
from swift_diloco.core.files.run_folder import STATUS_FILE, TAPE_FILE, RunFolder
from swift_diloco.core.files.story_files import tell
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.settings.syncer_settings import SyncerSettings, parse_syncer_argv
from swift_diloco.core.story.recorder import Draws
from syncer.brain.coordinator import Coordinator
from syncer.checks import check_bind, check_settings, find_checkpoint, outer_settings
from syncer.files.status_file import StatusFile
from syncer.files.store import Store
from syncer.files.tape import Tape
from syncer.links.endpoint import Endpoint
from syncer.links.guard import Guard, load_ring
from syncer.links.refusals import Gate
from syncer.numbers.global_state import GlobalState
from syncer.server import Files, Server, ServerRules

PROGRAM = "swift-diloco-syncer"

EMBEDDED_ORPHAN_TIMEOUT_S = 600.0
"""How long a syncer that an island started stays without any connection: longer than a restart of the island from its
checkpoint takes, shorter than somebody would like to find a forgotten process after."""

THREADS_MAX = 16
"""Threads of the arithmetic; beyond this the memory, not the cores, is the limit."""

TOKEN_BYTES = 8
"""Random bytes in a session, generation or join token: 64 bits do not meet by chance."""

ADMIN_TOKEN_BYTES = 32
"""Random bytes of the admin token: 256 bits are not guessed."""

log = logging.getLogger("syncer")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    try:
        return serve(parse_syncer_argv(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        print(f"{PROGRAM}: error: {one_line(error)}", file=sys.stderr, flush=True)
        return error.exit_code


def serve(settings: SyncerSettings) -> int:
    """Serve one run; returns the exit code. Raises `UserError`."""
    check_bind(settings)
    check_settings(settings)
    ring = load_ring(settings)
    outer = outer_settings(settings)
    intact = find_checkpoint(settings)
    start_logging(settings.log_level)
    run_dir = Path(settings.run_dir).absolute()
    session = new_token()
    with RunFolder(run_dir) as folder, Tape(Path(settings.tape or run_dir / TAPE_FILE)) as tape:
        endpoint = Endpoint(Guard(ring) if ring is not None else None)
        address = endpoint.bind(settings.bind)
        try:
            with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS_MAX), thread_name_prefix="numbers") as threads:
                encoding, heloco = Encoding(settings.delta_encoding), settings.correction == "heloco"
                state = GlobalState(outer, settings.merge == "avg", threads, encoding, heloco=heloco)
                store = open_store(settings)
                status = StatusFile(run_dir / STATUS_FILE)
                files = Files(tape, status, address, store)
                brain = Coordinator(settings, session=session, tokens=Draws(new_token))
                admin_token = secrets.token_hex(ADMIN_TOKEN_BYTES)
                rules = rules_of(settings, session, Gate(admin_token, guarded=ring is not None))
                server = Server(brain, rules, state, endpoint, files)
                obey_signals(server, embedded=settings.embedded)
                folder.publish_admin_token(admin_token)
                folder.publish_address(address, session, ring.own.public if ring is not None else "")
                log.info("listening on %s, process %d, run folder %s", address, os.getpid(), run_dir)
                if store is None:
                    log.warning("no --checkpoint-path: if this process dies, the run's global values die with it")
                try:
                    if store is not None and intact is not None:
                        resume(intact, store, server)
                    del intact  # Its values live as long as they are present, not as long as this frame.
                    outcome = server.run()
                except Exception as error:
                    tell(server.story, run_dir, error)
                    raise
                if store is not None:
                    store.close()
        finally:
            endpoint.close()
    log.info("ended: %s", outcome.reason)
    return outcome.code


def open_store(settings: SyncerSettings) -> Store | None:
    """The folder of the checkpoints, if any are wanted."""
    if not settings.checkpoint_path:
        return None
    store = Store(Path(settings.checkpoint_path).absolute(), settings.checkpoint_keep)
    store.prepare()
    return store


def rules_of(settings: SyncerSettings, session: str, gate: Gate) -> ServerRules:
    """What the settings tell the server."""
    return ServerRules(
        session,
        gate,
        pinned_fragments_max=settings.pinned_fragments_max,
        publish_encoding=Encoding(settings.publish_encoding),
        orphan_timeout_s=EMBEDDED_ORPHAN_TIMEOUT_S if settings.embedded else math.inf,
    )


def resume(intact: Intact, store: Store, server: Server) -> None:
    """Continue the run of a checkpoint."""
    for fault in intact.skipped:
        log.error("a newer checkpoint is not used: %s", fault)
    store.resumed(intact.manifest)
    server.resume(intact)


def new_token() -> str:
    """A text that nobody can guess and that never comes again."""
    return secrets.token_hex(TOKEN_BYTES)


def start_logging(level: str) -> None:
    """Readable lines on stderr."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s: %(message)s", force=True
    )


def obey_signals(server: Server, *, embedded: bool) -> None:
    """SIGTERM and SIGINT ask the coordinator to stop. An embedded syncer does not listen to its island's terminal."""
    signal.signal(signal.SIGTERM, lambda *_: server.request_stop())
    if embedded:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, lambda *_: server.request_stop())


if __name__ == "__main__":
    raise SystemExit(main())
