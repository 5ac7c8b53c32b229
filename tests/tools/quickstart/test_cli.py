"""cli.py: options, exit codes, what is said."""

import signal

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.tools.quickstart import cli, run
from swift_diloco.tools.quickstart.errors import QuickstartError
from swift_diloco.tools.quickstart.result.figures import parse_tape
from swift_diloco.tools.quickstart.result.report import Report, build_report
from tests.tools.quickstart import samples


def report(**changes: object) -> Report:
    tape = parse_tape(samples.tape_lines())
    curves = {0: samples.points(), 1: samples.points()}
    return build_report(curves, samples.points(), tape, samples.measured(**changes), samples.facts())


@pytest.fixture(autouse=True)
def restored_signals() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (report(), 0, "held-out loss 7.5000 -> 5.0000 (alone 5.1000) in 120 s"),
        (report(final_digests={0: "a", 1: "b"}), 1, "FAILED one model at the end: 2 exports, 2 distinct digests"),
        (QuickstartError("island-1 ended"), 1, "error: island-1 ended"),
        (UserError("--out is a file"), 2, "error: --out is a file"),
        (KeyboardInterrupt(), 130, "interrupted; all processes are stopped"),
    ],
)
def test_the_exit_code_tells_what_happened(
    outcome: Report | BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fake(options: run.QuickstartOptions, say: object) -> Report:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(run, "run_quickstart", fake)
    assert cli.main([]) == code
    shown = capfd.readouterr()
    assert told in shown.out + shown.err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--steps", "3"], "3 is not between 20 and 10000"),
        (["--steps", "many"], "invalid whole_number value: 'many'"),
        (["--islands", "9"], "9 is not between 1 and 8"),
        (["--chaos", "--islands", "1"], "--chaos needs at least 2 islands"),
        (["--step", "30"], "unrecognized arguments: --step 30"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_and_exit_code_2(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    shown = capsys.readouterr().err
    assert told in shown and shown.count("\n") == 1
