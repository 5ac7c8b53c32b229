"""What all callbacks do alike: park and save before a step, finish at the last one, and leave well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from swift_diloco.core.errors import USER_MISTAKE_EXIT_CODE, DilocoError, InternalError, PeerError, UserError
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.island.island import Instruction, Island
from swift_diloco.island.ranks.torch_group import LoneRank
from swift_diloco.trainers.callback_shell import Shell


class Scripted:
    """An island that gives its instructions in turn and notes what is asked of it."""

    def __init__(self, *instructions: Instruction) -> None:
        self.instruction = Instruction()
        self.coming = list(instructions)
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def step_begins(self) -> Instruction:
        self.calls.append("step begins")
        self.instruction = self.coming.pop(0)
        return self.instruction

    def finish(self, step: int) -> None:
        self.calls.append(("finish", step))
        if self.coming:
            self.instruction = self.coming.pop(0)

    def saved(self) -> None:
        self.calls.append("saved")

    def close(self, error: BaseException | None = None) -> None:
        self.calls.append(("close", error))


def begun(island: Scripted, rank: int = 0) -> Shell:
    """A callback's shell whose training has begun; from then on it is that of `rank`."""
    shell, group = Shell(), LoneRank()
    shell.begin(group, lambda: cast(Island, island))
    group.rank = rank
    island.calls.clear()
    return shell


SAVE, STOP, GO = Instruction(save=True), Instruction(stop=True, save=True), Instruction()


@pytest.mark.parametrize("what", ["island", "group", "instruction"])
def test_before_the_training_there_is_neither_an_island_nor_its_ranks(what: str) -> None:
    with pytest.raises(InternalError, match="the training has not begun"):
        getattr(Shell(), what)


@pytest.mark.parametrize(
    ("instructions", "saves"), [((GO,), 0), ((SAVE, SAVE, GO), 2), ((SAVE, STOP), 1), ((STOP,), 0)]
)
def test_the_gate_makes_the_ordered_saves_until_it_opens_or_the_island_stops(
    instructions: tuple[Instruction, ...], saves: int
) -> None:
    island = Scripted(*instructions)
    shell = begun(island)
    assert shell.gate(lambda: island.calls.append("save")) is instructions[-1] is shell.instruction
    assert island.calls == [*(("step begins", "save") * saves), "step begins"]


def test_the_final_cut_is_waited_for_unless_this_job_alone_was_told_to_stop() -> None:
    island = Scripted()
    assert begun(island).finish(7) and island.calls == [("finish", 7)]
    island = Scripted(Instruction(stop=True, final=False))
    shell = begun(island)
    shell.gate(lambda: None)
    assert not shell.finish(7) and island.calls == ["step begins"]


def test_an_order_to_stop_while_the_final_cut_is_installed_does_not_deny_it() -> None:
    island = Scripted(Instruction(stop=True, final=False))
    assert begun(island).finish(7) and not island.instruction.final


def test_the_end_is_told_after_the_last_save() -> None:
    island = Scripted()
    begun(island).end()
    assert island.calls == ["saved", ("close", None)]


@pytest.mark.parametrize(
    ("error", "rank", "code", "said"),
    [
        (UserError("a flag\nis wrong"), 0, USER_MISTAKE_EXIT_CODE, "error: a flag is wrong"),
        (UserError("a flag is wrong"), 1, USER_MISTAKE_EXIT_CODE, ""),
        (PeerError("gone"), 0, 1, "error: gone"),
    ],
)
def test_our_own_errors_close_the_island_and_end_the_process_in_one_line(
    error: DilocoError, rank: int, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    island = Scripted()
    shell = begun(island, rank)

    def event() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        shell.guard(event)
    told = capsys.readouterr().err
    assert (ended.value.code, island.calls) == (code, [("close", error)])
    assert told.strip().endswith(said) and bool(told) is bool(said)


@pytest.mark.parametrize("error", [InternalError("ours"), ValueError("a bug"), KeyboardInterrupt()])
def test_every_other_error_closes_the_island_and_keeps_its_traceback(error: BaseException) -> None:
    island = Scripted()
    shell = begun(island)

    def event() -> None:
        raise error

    with pytest.raises(type(error)):
        shell.guard(event)
    assert island.calls == [("close", error)]


def test_an_event_before_the_island_is_built_ends_as_its_error_asks() -> None:
    def event() -> None:
        raise UserError("no flags")

    with pytest.raises(SystemExit) as ended:
        Shell().guard(event)
    assert ended.value.code == USER_MISTAKE_EXIT_CODE


def test_only_rank_0_knows_the_instance_of_its_run_folder(tmp_path: Path) -> None:
    settings, group = IslandSettings(island_id=2, syncer="tcp://127.0.0.1:5"), LoneRank()
    first = Shell().begin_job(settings, group, tmp_path, 7)
    assert (first.step, first.address(), first.revive) == (7, "tcp://127.0.0.1:5", None)
    assert first.instance == (tmp_path / "instance-2").read_text() != ""
    assert Shell().begin_job(settings, group, tmp_path, 8).instance == first.instance
    group.rank = 1
    assert Shell().begin_job(settings, group, tmp_path, 7).instance == ""
