"""Rounds after they closed: merge, wait for their turn, commit; or void, so that the outer step number goes on.

Knows nothing of how a round gathered. Merges of different fragments may run at once and end in any order;
commits are in strict order of the outer step.

Invariants: a commit publishes version = t; a void commit publishes nothing and releases every anchor of its round.
"""

from __future__ import annotations

from collections.abc import Callable

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import BudgetReached, ValueName
from syncer.brain.memory.round import Answer, Round, Stage
from syncer.brain.memory.state import State, drop_answer
from syncer.brain.rules.gathering import ROUND, close_pulls
from syncer.brain.rules.late_pushes import Carrying
from syncer.events import Commit, DiscardMerge, Merge, MergeFinished, Merging


class Closing:
    """Turns closed rounds into commits. `holds` says whether the next commit has to wait for a checkpoint."""

    def __init__(self, state: State, carrying: Carrying, *, holds: Callable[[Round], bool]) -> None:
        self._state = state
        self._carrying = carrying
        self._holds = holds

    def close(self, closed: Round, reason: str) -> None:
        """Fix a round's contributions and merge them."""
        state = self._state
        closed.closed_at = state.now
        self._dismiss(closed)
        riders = self._carrying.ride_along(closed)
        closed.merging = tuple(sorted([*riders, *contributions(closed)], key=lambda a: (a.island, not a.carried)))
        state.log("debug", f"outer step {closed.t} closes with {closed.complete} answers: {reason}")
        if not any(answer.weight for answer in closed.merging):
            self.void(closed, "no island had learned anything")
            return
        self._merge(closed)

    def _merge(self, closed: Round) -> None:
        closed.stage, closed.result = Stage.MERGING, None
        merging = tuple(Merging(a.island, a.push, a.weight) for a in closed.merging if a.weight > 0)
        self._state.do(Merge(closed.t, closed.attempt, closed.fragment, merging))

    def void(self, closed: Round, reason: str) -> None:
        """The round takes no step. It still waits for its turn."""
        closed.stage, closed.void_reason = Stage.READY, reason
        self.commit_ready()

    def give_up(self, gathered: Round, reason: str) -> None:
        """End a gathering round without a step."""
        self._dismiss(gathered)
        gathered.closed_at = self._state.now
        gathered.merging = tuple(contributions(gathered))
        self.void(gathered, reason)

    def take_back(self, gathered: Round, reason: str) -> None:
        """Undo the newest launch: its outer step was never taken and is free again."""
        state = self._state
        assert gathered.t == state.launched and gathered.stage is Stage.GATHERING
        self._dismiss(gathered)
        for answer in contributions(gathered):
            drop_answer(state, gathered, answer, f"outer step {gathered.t} was taken back: {reason}")
        del state.rounds[gathered.t]
        state.launched -= 1
        state.log("info", f"outer step {gathered.t} is taken back: {reason}")

    def _dismiss(self, closed: Round) -> None:
        """Let those go who come too late: what they began to send may still be carried into the next round."""
        state = self._state
        state.deadlines.clear((ROUND, str(closed.t)))
        close_pulls(state, closed)
        for island in sorted(closed.pending):
            if island not in closed.answers:
                continue
            late = closed.withdraw(island)
            if state.stopping or not self._carrying.missed(closed, late):
                drop_answer(state, closed, late, f"outer step {closed.t} closed before the push was complete")

    def merged(self, event: MergeFinished) -> None:
        """A merge ended."""
        closed = self._state.rounds.get(event.t)
        if closed is None or closed.stage is not Stage.MERGING or closed.attempt != event.attempt:
            return
        self._state.sync_s = event.merge_s
        if not event.finite and self._without_offenders(closed, event):
            return
        closed.stage, closed.result = Stage.READY, event
        if not event.finite:
            closed.void_reason = f"deltas of islands {list(event.offenders)} made a result that is not finite"
        self.commit_ready()

    def _without_offenders(self, closed: Round, event: MergeFinished) -> bool:
        """Merge once more without the islands that spoilt the result, if enough others are left; whether they are."""
        state = self._state
        bad = [answer for answer in closed.merging if answer.island in event.offenders]
        left = tuple(answer for answer in closed.merging if answer.island not in event.offenders)
        islands = {answer.island for answer in left if answer.weight > 0}
        if not bad or len(islands) < state.settings.min_islands:
            return False
        uploads = tuple(answer.push for answer in bad if not answer.empty)
        state.do(DiscardMerge(closed.t, uploads))
        for answer in bad:
            if answer.carried:
                self._carrying.merged(closed.fragment, answer)
            else:
                closed.expel(answer.island)
            drop_answer(state, closed, answer, "the delta was not finite", freed=True)
        closed.merging = left
        offenders = sorted({answer.island for answer in bad})
        state.log("warning", f"outer step {closed.t} is merged without islands {offenders}: not finite")
        self._merge(closed)
        return True

    def commit_ready(self) -> None:
        """Commit what is ready, in order."""
        state = self._state
        while (closed := state.rounds.get(state.committed + 1)) is not None and closed.stage is Stage.READY:
            if self._must_wait(closed):
                return
            del state.rounds[closed.t]
            state.committed = closed.t
            if closed.void_reason:
                self._commit_void(closed)
            else:
                self._commit(closed)
            if closed.t == state.settings.outer_steps_max:
                self._tell_budget(closed.t)

    def _must_wait(self, closed: Round) -> bool:
        """Whether a checkpoint comes first. What may be in it is on the tape before it is written."""
        if closed.result is not None and not closed.void_reason and self._state.settings.durable_publish:
            self._tape(closed, self._name(closed))
        return self._holds(closed)

    def _name(self, closed: Round) -> ValueName:
        assert closed.result is not None
        return ValueName(closed.fragment, closed.t, closed.result.digest)

    def _commit(self, closed: Round) -> None:
        state = self._state
        assert state.values is not None
        name = self._name(closed)
        state.values.publish(name)
        for member in state.roster.members.values():
            member.installed[closed.fragment] = member.clock.step
        given = [answer for answer in closed.merging if not answer.empty]
        for answer in given:
            state.held.merge(answer.island, answer.anchor)
            if answer.carried:
                self._carrying.merged(closed.fragment, answer)
        self._tape(closed, name)
        state.do(Commit(closed.t, name, tuple(answer.push for answer in given)))

    def _commit_void(self, closed: Round) -> None:
        """The outer step number goes on, the version stays, and every delta of the round is dropped."""
        state = self._state
        assert state.values is not None
        self._tape(closed, state.values.present[closed.fragment])
        offenders = closed.result.offenders if closed.result is not None else ()
        for answer in closed.merging:
            mine = answer.island in offenders
            reason = "the delta was not finite" if mine else f"outer step {closed.t} was void: {closed.void_reason}"
            if answer.carried:
                self._carrying.merged(closed.fragment, answer)
            drop_answer(state, closed, answer, reason, freed=closed.result is not None)
        if closed.result is not None:
            state.do(DiscardMerge(closed.t, tuple(answer.push for answer in closed.merging if not answer.empty)))
        if offenders:
            state.log("warning", f"outer step {closed.t} was void: {closed.void_reason}")

    def _tape(self, closed: Round, name: ValueName) -> None:
        """One line per commit, whoever asks for it first."""
        if closed.taped:
            return
        closed.taped = True
        state, result = self._state, closed.result
        quorum_at = closed.quorum_at if closed.quorum_at is not None else closed.closed_at
        commit = tape_lines.Commit(
            t=closed.t,
            fragment=closed.fragment,
            version=name.version,
            digest=name.digest,
            void=bool(closed.void_reason),
            contributions=tuple(_contribution(answer) for answer in closed.merging),
            offenders=result.offenders if result is not None else (),
            quorum_s=quorum_at - closed.launched_at,
            round_s=state.now - closed.launched_at,
            merge_s=result.merge_s if result is not None else 0.0,
        )
        state.tape(commit)

    def _tell_budget(self, t: int) -> None:
        state = self._state
        state.log("info", f"the budget of {t} outer steps is reached")
        for member in state.roster.ordered():
            state.send(member, BudgetReached(state.session, member.generation, t))


def contributions(closed: Round) -> list[Answer]:
    """Complete answers in island order: the order in which floats are added."""
    return [answer for _, answer in sorted(closed.answers.items()) if answer.complete]


def _contribution(answer: Answer) -> tape_lines.Contribution:
    """One contribution as the tape tells it."""
    return tape_lines.Contribution(
        island=answer.island,
        generation=answer.generation,
        push=answer.push,
        base_version=answer.anchor.version,
        lag=answer.lag,
        steps=answer.steps,
        tokens=answer.tokens,
        weight=answer.weight,
        bytes=answer.payload_bytes,
        capture_step=answer.capture_step,
        carried=answer.carried,
    )
