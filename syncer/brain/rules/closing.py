"""Rounds after they closed: merge, wait for their turn, commit; or void, so that the outer step number goes on.

Knows nothing of how a round gathered. Merges of different fragments may run at once and end in any order;
commits are in strict order of the outer step.

Invariants: a commit publishes version = t; a void commit publishes nothing and releases every anchor of its round.
"""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import BudgetReached, ValueName
from syncer.brain.memory.pushes import close_pulls, drop_answer
from syncer.brain.memory.round import Answer, Round, Stage
from syncer.brain.memory.state import ROUND, State
from syncer.brain.rules.durability import Durability
from syncer.brain.rules.gathering import Closed
from syncer.brain.rules.late_pushes import LatePushes
from syncer.events import Commit, DiscardMerge, Merge, MergeFinished, MergeInput


class Closing:
    """Turns closed rounds into commits."""

    def __init__(self, state: State, late: LatePushes, durability: Durability) -> None:
        self._state = state
        self._late = late
        self._durability = durability

    def close(self, rounds: list[Closed]) -> None:
        """Merge what rounds have gathered; commit what that makes ready."""
        for each in rounds:
            self._fix(each.gathered, each.reason)
        self.commit_ready()

    def _fix(self, closed: Round, reason: str) -> None:
        """Fix a round's contributions and merge them."""
        state = self._state
        closed.closed_at = state.now
        closed.merging = tuple(self._late.contribute(closed))  # Which those that come too late do not push aside.
        self._dismiss(closed)
        given = [*closed.merging, *closed.contributions]
        closed.merging = tuple(sorted(given, key=lambda answer: (answer.island, not answer.carried)))
        state.log("debug", f"outer step {closed.t} closes with {closed.complete} answers: {reason}")
        if any(answer.weight for answer in closed.merging):
            self._merge(closed)
        else:
            self._void(closed, "no island had learned anything")

    def _merge(self, closed: Round) -> None:
        closed.enter(Stage.MERGING)
        merging = tuple(MergeInput(a.island, a.push, a.weight) for a in closed.merging if a.weight > 0)
        self._state.do(Merge(closed.t, closed.attempt, closed.fragment, merging))

    def _void(self, closed: Round, reason: str) -> None:
        """The round takes no step. It still waits for its turn."""
        closed.enter(Stage.READY)
        closed.void_reason = reason

    def close_void(self, gathered: Round, reason: str) -> None:
        """End a gathering round without a step."""
        self._dismiss(gathered)
        gathered.closed_at = self._state.now
        gathered.merging = tuple(gathered.contributions)
        self._void(gathered, reason)

    def take_back(self, gathered: Round, reason: str) -> None:
        """Undo the newest launch: its outer step was never taken and is free again."""
        state = self._state
        assert gathered.t == state.launched and gathered.stage is Stage.GATHERING
        self._dismiss(gathered)
        for answer in gathered.contributions:
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
            if self._late.may_go_on(closed, late):
                self._late.go_on(closed, late)
            else:
                drop_answer(state, closed, late, f"outer step {closed.t} closed before the push was complete")

    def merged(self, event: MergeFinished) -> None:
        """A merge ended."""
        closed = self._state.rounds.get(event.t)
        if closed is None or closed.stage is not Stage.MERGING or closed.attempt != event.attempt:
            what = f"MergeFinished of outer step {event.t}, attempt {event.attempt}"
            self._state.log("debug", f"{what}: nobody waits for it any more")
            return
        self._state.sync_s = event.merge_s
        if not event.finite and self._goes_without(closed, event.offenders):
            self._merge_without(closed, event.offenders)
            return
        closed.enter(Stage.READY)
        closed.result = event
        if not event.finite:
            closed.void_reason = f"deltas of islands {list(event.offenders)} made a result that is not finite"
        self.commit_ready()

    def _goes_without(self, closed: Round, offenders: tuple[int, ...]) -> bool:
        """Whether enough others are left to merge without the islands that spoilt the result."""
        left = {answer.island for answer in closed.merging if answer.weight > 0} - set(offenders)
        found = any(answer.island in offenders for answer in closed.merging)
        return found and len(left) >= self._state.settings.min_islands

    def _merge_without(self, closed: Round, offenders: tuple[int, ...]) -> None:
        """Merge once more without the islands that spoilt the result."""
        state = self._state
        bad = [answer for answer in closed.merging if answer.island in offenders]
        uploads = tuple(answer.push for answer in bad if not answer.empty)
        state.do(DiscardMerge(closed.t, uploads))
        for answer in bad:
            if answer.carried:
                self._late.merged(closed.fragment, answer)
            else:
                closed.expel(answer.island)
            drop_answer(state, closed, answer, "the delta was not finite", freed=True)
        closed.merging = tuple(answer for answer in closed.merging if answer.island not in offenders)
        named = sorted({answer.island for answer in bad})
        state.log("warning", f"outer step {closed.t} is merged without islands {named}: not finite")
        self._merge(closed)

    def commit_ready(self) -> None:
        """Commit what is ready, in order, as far as checkpoints allow."""
        state = self._state
        while (closed := state.ready) is not None:
            if self._durability.blocks(closed):
                if self._durability.durable:  # What a checkpoint holds is on the tape before.
                    self._tape(closed, self._name(closed))
                self._durability.hasten(closed)
                return
            del state.rounds[closed.t]
            state.committed = closed.t
            if closed.void_reason:
                self._commit_void(closed)
            else:
                self._commit(closed)
            if closed.t == state.settings.outer_steps_max:
                self._tell_budget(closed.t)

    def _name(self, closed: Round) -> ValueName:
        assert closed.result is not None
        return ValueName(closed.fragment, closed.t, closed.result.digest)

    def _commit(self, closed: Round) -> None:
        state = self._state
        assert state.values is not None
        name = self._name(closed)
        state.values.publish(name)
        if state.settings.align != "carry":  # the others' work that was not pushed is overwritten, and counts no more
            for member in state.roster.members.values():
                member.counts_from[closed.fragment] = member.clock.step
        given = [answer for answer in closed.merging if not answer.empty]
        for answer in given:
            state.held.merge(answer.island, answer.anchor)
            if answer.carried:
                self._late.merged(closed.fragment, answer)
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
                self._late.merged(closed.fragment, answer)
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
        state.tape(
            tape_lines.Commit(
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
        )

    def _tell_budget(self, t: int) -> None:
        state = self._state
        state.log("info", f"the budget of {t} outer steps is reached")
        for member in state.roster.ordered():
            state.send(member, BudgetReached(state.session, member.generation, t))


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
