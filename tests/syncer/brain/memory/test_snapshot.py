"""A coordinator that goes on from a checkpoint: what it knows, what it forgot, and that the numbers are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.checkpoint_files import read_newest
from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import Manifest, SavedState
from swift_diloco.core.formats.messages import Done, FinalCut, Pull, ValueName, Welcome
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminRequest
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.core.story.dump import dump_of, parsed, text_of, written
from swift_diloco.core.story.recorder import Story
from swift_diloco.core.story.replay import replay
from syncer.brain.memory.snapshot import check_contract, contract_of, saved_state
from syncer.brain.rules.finish import RETURN_S
from syncer.events import (
    Commit,
    Effect,
    Exit,
    Log,
    MergeInput,
    OpenUpload,
    Received,
    Restored,
    Send,
    UploadCompleted,
    WriteCheckpoint,
    WriteTape,
)
from syncer.files.store import FragmentPart, Store
from syncer.files.writer import restore
from syncer.numbers.deltas import FlatDelta
from syncer.numbers.global_state import GlobalState, Value
from syncer.numbers.outer_step import Weighted
from tests.syncer.desk import Desk, control, initial_names, messages
from tests.syncer.saves import LAYOUT, PLAN, SHAPE


def saving_desk(**settings: Any) -> Desk:
    given: dict[str, Any] = {"checkpoint_path": "/saved", "checkpoint_every": 1, "quorum": 1}
    return Desk(**(given | settings))


def last_state(desk: Desk) -> SavedState:
    state = [e.state for e in desk.effects if isinstance(e, WriteCheckpoint)][-1]
    again: SavedState = msgspec.json.decode(msgspec.json.encode(state), type=SavedState)
    assert again == state
    return again


def resumed(desk: Desk, state: SavedState, **settings: Any) -> tuple[Desk, list[Effect]]:
    """Another life with the settings of the first, and what it wants done."""
    given = {name: getattr(desk.settings, name) for name in SyncerSettings.__struct_fields__}
    new = Desk(**(given | settings))
    return new, new.take(Restored(state, desk.layout, _plan(desk)))


def _plan(desk: Desk) -> Any:
    (welcome,) = {e.message.plan for e in desk.effects if isinstance(e, Send) and isinstance(e.message, Welcome)}
    return welcome


def trained(**settings: Any) -> Desk:
    """Two islands; outer step 1 is committed with island 0's push, and is in the checkpoint."""
    desk = saving_desk(**settings)
    desk.ready(2)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    return desk


def test_outer_steps_and_versions_go_on_where_the_checkpoint_was() -> None:
    desk = trained()
    new, effects = resumed(desk, last_state(desk))
    assert effects == [WriteTape(tape_lines.Resumed(t=1, run="k5", versions=(1, 0), carried=()))]
    new.join(0)
    welcome = new.sent(0, Welcome)[0]
    assert welcome.run == "k5" and welcome.values == (ValueName(0, 1, "digest-1"), initial_names(2)[1])
    assert new.pulled(0) == [(2, 1), (3, 1)]
    assert not [e for e in new.effects if isinstance(e, OpenUpload)], "no initial values are asked for"


def test_what_was_saved_and_restored_is_saved_the_same() -> None:
    desk = trained()
    state = last_state(desk)
    new, _ = resumed(desk, state)
    assert saved_state(new.brain._state) == state


def test_merged_anchors_are_held_for_ever_and_gathered_ones_are_asked_for_again() -> None:
    desk = trained(quorum=2, min_islands=1)
    desk.push(1, 1)
    desk.merged(1)
    desk.push(0, 2)
    state = last_state(desk)
    new, _ = resumed(desk, state)
    new.join(0)
    welcome = new.sent(0, Welcome)[0]
    assert welcome.held == (initial_names(2)[0],)


def test_a_carried_push_is_merged_after_the_restart_and_never_twice() -> None:
    desk = saving_desk(checkpoint_every=2)
    desk.ready(2)
    late = desk.offer(1, 1)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    desk.take(UploadCompleted(late, 16))
    desk.push(0, 2)
    desk.at(10.0)
    desk.merged(2)
    state = last_state(desk)
    assert [push.push for push in state.carried] == [late]
    new, (line,) = resumed(desk, state, checkpoint_every=1)
    assert isinstance(line, WriteTape)
    assert line.line == tape_lines.Resumed(t=2, run="k5", versions=(1, 2), carried=(late,))
    new.join(1)
    new.at(RETURN_S)
    assert new.sent(1, Welcome)[0].held == (initial_names(2)[0],)
    new.push(1, 3, anchor=ValueName(0, 1, "digest-1"))
    (merge,) = new.merges()
    assert merge.contributions[0] == MergeInput(1, late, 200.0) and len(merge.contributions) == 2
    new.merged(3)
    assert [e.uploads for e in new.effects if isinstance(e, Commit)] == [tuple(m.upload for m in merge.contributions)]
    assert last_state(new).carried == ()


def set_min_islands(desk: Desk, value: int) -> None:
    request = AdminRequest("n", "", AdminCommand.SET, changes=(("min_islands", str(value)),))
    desk.take(Received("admin-1-1", request))


def test_what_an_operator_set_outlives_the_restart() -> None:
    desk = saving_desk(min_islands=2)
    desk.ready(2)
    set_min_islands(desk, 1)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    state = last_state(desk)
    assert (state.started_with["min_islands"], state.overrides) == (2, {"min_islands": 1})
    new, _ = resumed(desk, state)
    new.join(0)
    assert new.sent(0, Pull), "one island is enough"
    assert new.sent(0, Welcome)[0].contract.min_islands == 1


def test_a_new_word_on_the_command_line_wins_over_what_an_operator_set() -> None:
    desk = saving_desk(min_islands=2)
    desk.ready(2)
    set_min_islands(desk, 1)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    new, _ = resumed(desk, last_state(desk), min_islands=3)
    new.join(0)
    assert new.sent(0, Welcome)[0].contract.min_islands == 3


def final_state() -> tuple[Desk, SavedState]:
    desk = saving_desk(checkpoint_every=100)
    desk.ready(2)
    desk.done(0)
    desk.done(1)
    for t in (1, 2, 3, 4):
        desk.empty(0, t)
        desk.empty(1, t)
    return desk, last_state(desk)


def test_a_final_checkpoint_serves_the_cut_again_and_launches_nothing() -> None:
    desk, state = final_state()
    new, _ = resumed(desk, state)
    new.join(1)
    assert new.sent(1, FinalCut)[0].values == state.values and not new.sent(1, Pull)
    assert not [e for e in new.saved(1) if isinstance(e, Exit)], "island 0 has not saved"
    new.join(0)
    new.take(Received(control(0), Done(new.brain._state.session, new.generation[0], 100)))
    assert new.saved(0)[-1] == Exit(0, "every island has saved the final cut", finished=True)


def test_a_final_checkpoint_is_served_no_longer_than_the_islands_have_to_save() -> None:
    desk, state = final_state()
    new, _ = resumed(desk, state)
    assert new.brain.next_wakeup == new.settings.final_linger_s
    assert isinstance(new.at(new.settings.final_linger_s)[-1], Exit)


def test_another_contract_is_refused_with_what_to_give() -> None:
    settings = SyncerSettings(checkpoint_path="/saved")
    state = last_state(trained())
    state = msgspec.structs.replace(state, contract=contract_of(settings))
    check_contract(state, settings)
    with pytest.raises(UserError, match=r"--outer-lr is 0.5, but the checkpoint's run .* has 1.0; give --outer-lr 1.0"):
        check_contract(state, msgspec.structs.replace(settings, outer_lr=0.5))


def test_an_island_with_another_model_is_refused_after_a_restart() -> None:
    desk = trained()
    new, _ = resumed(desk, last_state(desk))
    other = Desk(fragments=3).layout
    effects = new.take(Received(control(0), new.hello(0, layout=other, fingerprint=other.fingerprint)))
    assert "island 0 trains another model" in messages(effects)[0].reason  # type: ignore[union-attr]


def test_a_syncer_without_state_that_meets_a_running_island_says_so_loudly() -> None:
    desk = saving_desk()
    desk.join(0, running=True)
    (told,) = (e.text for e in desk.effects if isinstance(e, Log) and e.level == "error")
    assert "forgot --resume?" in told and desk.tape(tape_lines.Stateless) == [tape_lines.Stateless(island=0)]
    new, _ = resumed(desk, last_state(trained()))
    new.join(0, running=True)
    assert not new.tape(tape_lines.Stateless)


def test_the_story_of_a_restored_brain_begins_with_what_it_was_restored_from() -> None:
    desk = trained()
    state = last_state(desk)
    new = Desk(**{name: getattr(desk.settings, name) for name in SyncerSettings.__struct_fields__})
    story = Story("syncer", new.brain)
    story.handle(Restored(state, desk.layout, _plan(desk)), now=0.0)
    dump = parsed(written(dump_of(story)))
    assert [text_of(told.event)[:9] for told in dump.events] == ["Restored("]
    assert dump.events[0].effects and replay(dump) is None


def test_a_run_is_restored_before_all_else() -> None:
    desk = trained()
    with pytest.raises(AssertionError, match="a run is restored before all else"):
        desk.take(Restored(last_state(desk), desk.layout, _plan(desk)))


# -- The numbers ------------------------------------------------------------------------------------------------------


class Life:
    """A syncer's numbers: real values, a real store, one fragment after the other, deltas that only `t` decides."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.state = GlobalState(OuterSettings(0.7, 0.9, True), average_only=False)
        self.store = Store(folder, 3)
        self.t = 0
        if resume:
            intact = read_newest(folder)
            self.store.resumed(intact.manifest)
            self.t = intact.state.step
            restore(intact, self.state, None)  # type: ignore[arg-type]
        else:
            self.state.adopt_layout(LAYOUT, PLAN)
            sizes = [self.state.elements(f) for f in range(2)]
            values = [np.linspace(-1, 1, size, dtype=np.float32) for size in sizes]
            self.state.adopt_init([Value(v.name, v.values) for v in self.state.init_job(values)()])

    def step(self) -> None:
        self.t += 1
        fragment = (self.t - 1) % 2
        size = self.state.elements(fragment)
        pushes = [
            Weighted(
                island, 1.0 + island, FlatDelta(np.random.default_rng([self.t, island]).normal(size=size).astype("f4"))
            )
            for island in range(3)
        ]
        result = self.state.merge_job(fragment, pushes)()
        self.state.keep(self.t, result)
        self.state.commit(self.t, ValueName(fragment, self.t, result.digest))

    def save(self) -> Manifest:
        names = self.state.names
        history = tuple((name,) for name in names)
        saved = SavedState("run", self.t, LAYOUT.fingerprint, names, history)
        entries = [self.store.write_fragment(name, FragmentPart(*self.state.buffers_of(name))) for name in names]
        manifest = self.store.write_manifest(saved, self.store.write_shape(SHAPE), (entries, []))
        self.store.clean()
        return manifest


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_run_killed_after_any_step_ends_with_the_bits_of_one_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # The kernel outlives us here; a disk takes its time.
    steps = 7
    whole = Life(tmp_path / "whole", resume=False)
    named = [whole.state.names]
    for _ in range(steps):
        whole.step()
        named.append(whole.state.names)
    for killed_after in range(1, steps):
        folder = tmp_path / f"{killed_after}"
        folder.mkdir()
        first = Life(folder, resume=False)
        first.save()
        for _ in range(killed_after):
            first.step()
            if first.t % every == 0:
                first.save()
        second = Life(folder, resume=True)
        assert second.t == killed_after - killed_after % every
        assert second.state.names == named[second.t]
        while second.t < steps:
            second.step()
        assert second.state.names == named[steps]
