"""progress.py: what is shown is what the files say."""

import io
from pathlib import Path

from rich.console import Console

from swift_diloco.core.formats.status import CheckpointStatus, MemberStatus, Status, encode
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs.progress import (
    Display,
    JobView,
    Snapshot,
    Watch,
    drawing,
    plain_line,
)
from tests.tools.quickstart import samples

SYNCER = Status(
    time=1.0,
    phase="running",
    run="run",
    t=7,
    versions=(7, 6),
    open=(),
    members=tuple(
        MemberStatus(island, "host", step, None, waiting=waiting, done=False, linked=True)
        for island, step, waiting in ((0, 3, False), (1, 30, True))
    ),
    late=(),
    checkpoint=CheckpointStatus(None, "", ""),
    joining=(),
    waiting_for="island 0: fragment 1",
    bytes_pushed=2048,
    bytes_fetched=4096,
    bad_messages=0,
    stale_messages=0,
    address="tcp://127.0.0.1:1",
    pid=1,
)


def run_folder(root: Path) -> QuickstartFolder:
    folder = QuickstartFolder(root)
    samples.write_lines(folder.output("island-0") / "logging.jsonl", samples.log_rows(steps=40)[:3])
    samples.write_lines(folder.output("island-1") / "logging.jsonl", samples.log_rows(steps=40)[:30])
    folder.syncer.mkdir()
    folder.status.write_bytes(encode(SYNCER))
    return folder


def test_a_snapshot_tells_who_trains_waits_starts_and_has_finished(tmp_path: Path) -> None:
    running = ["island-0", "island-1", "island-2"]
    watch = Watch(run_folder(tmp_path), running, 40, lambda: running)
    assert watch.snapshot(9.0, with_syncer=True) == Snapshot(
        9.0,
        (
            JobView("island-0", "training", 3, 40, 6.8),
            JobView("island-1", "waiting", 30, 40, 4.1),
            JobView("island-2", "starting", 0, 40, None),
        ),
        SYNCER,
    )
    samples.write_lines(tmp_path / "island-2" / "logging.jsonl", [{"loss": 3.0, "iteration": "40/40"}])
    assert watch.snapshot(9.5, with_syncer=True).jobs[2] == JobView("island-2", "saving", 40, 40, 3.0)
    running.remove("island-0")
    after = watch.snapshot(10.0, with_syncer=False)
    assert after.jobs[0] == JobView("island-0", "finished", 3, 40, 6.8)
    assert after.syncer is None


def test_before_the_syncer_speaks_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert Watch(QuickstartFolder(tmp_path), [], 1, list).snapshot(0.0, with_syncer=True).syncer is None


SNAPSHOT = Snapshot(
    12.3, (JobView("island-0", "training", 3, 40, 6.8), JobView("island-1", "starting", 0, 40, None)), SYNCER
)


def test_the_plain_line_says_it_all() -> None:
    assert plain_line(SNAPSHOT) == (
        "   12 s  island-0 training 3/40 loss 6.800 | island-1 starting 0/40 | "
        "syncer running, t=7, versions 7 6, 2 KiB pushed, 4 KiB fetched; waiting for island 0: fragment 1"
    )


def test_the_drawing_shows_the_same() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(drawing(SNAPSHOT))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("island-0", "training", "3/40", "loss 6.800", "starting", "versions 7 6", "waiting for island 0"):
        assert words in shown


def test_without_a_terminal_a_line_comes_every_few_seconds() -> None:
    times = iter([0.0, 4.9, 5.0, 9.0, 10.0])
    console = Console(file=io.StringIO())
    with Display(console, clock=lambda: next(times)) as display:
        for _ in range(5):
            display.show(SNAPSHOT)
    assert console.file.getvalue().splitlines() == [plain_line(SNAPSHOT)] * 3  # type: ignore[attr-defined]


def test_on_a_terminal_the_last_state_stays() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console) as display:
        display.show(SNAPSHOT)
    assert "loss 6.800" in console.file.getvalue()  # type: ignore[attr-defined]
