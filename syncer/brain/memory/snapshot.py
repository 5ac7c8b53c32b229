"""The coordinator's state as a checkpoint keeps it, and a coordinator's state from what a checkpoint kept.

Never in it: rounds that gather, members, and pushes that are gathered for a round: after a crash the islands are told
that those are not held, and send them again.

Pure. Invariant: restoring what was saved and saving it again gives the same.
"""

from __future__ import annotations

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.manifest import CarriedPush, SavedState
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.core.settings.syncer_settings import KEPT, SyncerSettings
from syncer.brain.memory.held_anchors import HeldAnchors
from syncer.brain.memory.history import Values
from syncer.brain.memory.overrides import CHANGEABLE, apply_overrides
from syncer.brain.memory.round import Answer, Late, Round
from syncer.brain.memory.state import State


def contract_of(settings: SyncerSettings) -> dict[str, str | int | float | bool]:
    """What a run keeps of its settings from its start to its end."""
    return {name: getattr(settings, name) for name in KEPT}


def saved_state(state: State, *, final: bool = False) -> SavedState:
    """The state as it is now. `final`: its values are the final cut."""
    assert state.values is not None
    unsaved = state.unsaved if state.final else state.roster.members
    return SavedState(
        run=state.run,
        step=state.committed,
        fingerprint=_fingerprint(state),
        values=tuple(state.values.present),
        history=state.values.history(),
        merged=state.held.merged(),
        reached=state.held.reached(),
        carried=tuple(_carried_push(late) for late in state.carried.values()),
        contract=contract_of(state.settings),
        started_with=dict(state.started_with),
        overrides=dict(state.overrides),
        final=final,
        unsaved=tuple(sorted(unsaved)) if final else (),
    )


def initial_state(state: State, names: tuple[ValueName, ...], run: str) -> SavedState:
    """A run that has not begun, with its initial values."""
    return SavedState(
        run=run,
        step=0,
        fingerprint=_fingerprint(state),
        values=names,
        history=Values(names).history(),
        contract=contract_of(state.settings),
        started_with=dict(state.started_with),
        overrides=dict(state.overrides),
    )


def state_after(state: State, closed: Round, name: ValueName) -> SavedState:
    """The state as the commit of a merged round will make it."""
    assert state.values is not None
    values, held = state.values.copy(), state.held.copy()
    values.publish(name)
    for answer in closed.merging:
        if not answer.empty:
            held.merge(answer.island, answer.anchor)
    merged = {answer.push for answer in closed.merging}
    return SavedState(
        run=state.run,
        step=closed.t,
        fingerprint=_fingerprint(state),
        values=tuple(values.present),
        history=values.history(),
        merged=held.merged(),
        reached=held.reached(),
        carried=tuple(_carried_push(late) for late in state.carried.values() if late.answer.push not in merged),
        contract=contract_of(state.settings),
        started_with=dict(state.started_with),
        overrides=dict(state.overrides),
    )


def check_contract(saved: SavedState, settings: SyncerSettings) -> None:
    """Raise `UserError` unless a run may go on with these settings."""
    for name, value in contract_of(settings).items():
        before = saved.contract.get(name, value)
        if before != value:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{flag} is {value!r}, but the checkpoint's run ({saved.run}, outer step {saved.step}) has {before!r}; "
                f"give {flag} {before} to continue it, or start a new run with another --checkpoint-path"
            )


def restore(state: State, saved: SavedState, layout: Layout, plan: FragmentPlan) -> None:
    """Continue from a checkpoint. The state is fresh."""
    assert state.layout is None and state.values is None and not state.launched, "a run is restored before all else"
    assert layout.fingerprint == saved.fingerprint and len(plan) == len(saved.values)
    state.layout, state.plan = layout, plan
    state.run, state.values = saved.run, Values.of_history(saved.history)
    state.held = HeldAnchors.of_merged(saved.merged, saved.reached)
    state.committed = state.launched = state.saved_step = saved.step
    for push in saved.carried:
        late = _late(push)
        state.carried[push.island, push.fragment] = late
        state.held.gather(push.island, push.anchor, push.capture_step)
    # An operator's word outlives a restart, unless the restart itself says something new.
    kept = {
        name: value
        for name, value in saved.overrides.items()
        if name in CHANGEABLE and saved.started_with.get(name) == getattr(state.settings, name)
    }
    apply_overrides(state, kept)
    if saved.final:
        state.final, state.unsaved = saved.values, set(saved.unsaved)


def _fingerprint(state: State) -> str:
    assert state.layout is not None
    return state.layout.fingerprint


def _carried_push(late: Late) -> CarriedPush:
    answer = late.answer
    return CarriedPush(**answer.facts(), fragment=late.fragment, t=late.t, payload_bytes=answer.payload_bytes)


def _late(push: CarriedPush) -> Late:
    answer = Answer(**push.facts(), lag=0, complete=True, payload_bytes=push.payload_bytes, carried=True)
    return Late(answer, push.fragment, push.t)
