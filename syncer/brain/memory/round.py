"""One round: who may answer, who has, and whether it closes, waits or begins again.

Knows no connections, no values and no effects. A round's members are the (island, generation) pairs present when the
attempt began; a member whose generation ends without a complete answer leaves, and its slot waits for the island's next
generation. A complete answer stays, whoever leaves.

A push that missed an earlier round and is measured from the present value counts as its island's answer: the round
would wait for an island that may not push again before there is a new value.

Invariants: an island has at most one answer; `pending` are the members without a complete answer, `owing` those of them
from whom an answer can be expected by now; `complete` counts complete answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from swift_diloco.core.formats.manifest import PushFacts
from syncer.events import MergeFinished

UPLOAD_IDLE_S = 5.0
"""An upload without a new chunk for so long makes no progress: five times the interval at which progress is told."""


class Stage(Enum):
    """How far a round is."""

    GATHERING = "gathering"
    """Answers are taken."""
    MERGING = "merging"
    """Contributions are fixed; the result is being computed."""
    READY = "ready"
    """The result is there (or the round is void); it waits for its turn to be committed."""


FOLLOWS = {
    Stage.GATHERING: frozenset({Stage.MERGING, Stage.READY}),
    # Once more, without the islands that spoilt the result.
    Stage.MERGING: frozenset({Stage.MERGING, Stage.READY}),
    Stage.READY: frozenset(),
}
"""Which stage may come after which. A new attempt is no new stage: the round gathers on."""


class Answer(PushFacts, kw_only=True):
    """An admitted push."""

    lag: int
    """Versions of its fragment that its anchor was behind when it was admitted, or is merged."""
    complete: bool = False
    payload_bytes: int = 0
    progressed_at: float = 0.0
    carried: bool = False
    """It missed its round and is merged into a later one."""

    @property
    def empty(self) -> bool:
        """Nothing was learned: there is no upload and no anchor is spent."""
        return self.steps == 0


@dataclass(slots=True, eq=False)
class Late:
    """A push that missed its round, outer step `t`: still arriving, or complete and carried."""

    answer: Answer
    fragment: int
    t: int


@dataclass(frozen=True)
class Leaving:
    """A carried push that was dropped and that a checkpoint still has, so that a crash may bring it back."""

    late: Late
    reason: str


@dataclass(slots=True, eq=False)
class Round:
    """One attempt to collect what the islands learned on a fragment, for outer step `t`."""

    t: int
    fragment: int
    launched_at: float
    attempt: int = 1
    stage: Stage = Stage.GATHERING
    members: dict[int, str] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)
    owing: set[int] = field(default_factory=set)
    vacant: set[int] = field(default_factory=set)
    answers: dict[int, Answer] = field(default_factory=dict)
    complete: int = 0
    mute: frozenset[int] = frozenset()
    """Islands that can answer only when there is a new value: what they pushed from the present one is carried."""
    departed: int = 0
    """Complete answers of islands that are no members any more."""
    clock_at: float | None = None
    """When the quorum clock started: K members owed an answer."""
    quorum_at: float | None = None
    """When K answers were complete."""
    grace_s: float = 0.0
    closed_at: float = 0.0
    merging: tuple[Answer, ...] = ()
    """Once closed: what is merged or void with it, in the order in which floats are added; carried pushes too."""
    result: MergeFinished | None = None
    """What the merge gave; None for a round that is void without one."""
    void_reason: str = ""
    taped: bool = False
    """Its commit is on the tape already."""

    @property
    def present(self) -> int:
        """Islands that have answered or still can."""
        return len(self.members) + self.departed

    @property
    def answered(self) -> int:
        """Islands of which something is held for this round."""
        return self.complete + len(self.mute)

    @property
    def contributions(self) -> list[Answer]:
        """Complete answers in island order: the order in which floats are added."""
        return [answer for _, answer in sorted(self.answers.items()) if answer.complete]

    def enter(self, stage: Stage) -> None:
        """The round goes on to a stage that may follow."""
        assert stage in FOLLOWS[self.stage], f"outer step {self.t}: {stage.value} cannot follow {self.stage.value}"
        self.stage = stage

    def capture(self, members: Iterable[tuple[int, str]]) -> None:
        """Begin an attempt with these members."""
        self.members = dict(members)
        self.pending = dict.fromkeys(self.members)
        self.owing, self.vacant, self.answers = set(), set(), {}
        self.complete = self.departed = 0
        self.clock_at = self.quorum_at = None

    def owe(self, island: int) -> None:
        """A member has trained long enough to answer."""
        if island in self.pending:
            self.owing.add(island)

    def admit(self, answer: Answer) -> None:
        """Take an offer; an empty one is complete at once."""
        assert answer.island in self.pending and answer.island not in self.answers
        self.answers[answer.island] = answer
        self.owing.add(answer.island)
        if answer.empty:
            self.finish(answer.island, 0)

    def finish(self, island: int, payload_bytes: int) -> Answer:
        """An answer is complete."""
        answer = self.answers[island]
        assert not answer.complete
        answer.complete, answer.payload_bytes = True, payload_bytes
        self.complete += 1
        del self.pending[island]
        self.owing.discard(island)
        return answer

    def withdraw(self, island: int) -> Answer:
        """An answer that is not complete is taken back; its island may answer again."""
        answer = self.answers.pop(island)
        assert not answer.complete
        return answer

    def expel(self, island: int) -> None:
        """A complete answer turned out to be bad after the round closed."""
        answer = self.answers.pop(island)
        assert self.stage is not Stage.GATHERING and answer.complete
        self.complete -= 1
        self.departed -= island not in self.members

    def leave(self, island: int, generation: str) -> None:
        """A generation ended. What it had completed stays."""
        if self.members.get(island) != generation:
            return
        del self.members[island]
        self.owing.discard(island)
        if island in self.pending:
            del self.pending[island]
            self.vacant.add(island)
        elif island in self.answers:  # and was not expelled
            self.departed += 1

    def fill(self, island: int, generation: str) -> bool:
        """Give a vacated slot to the island's next generation; whether there was one."""
        if island not in self.vacant:
            return False
        self.vacant.remove(island)
        self.members[island] = generation
        self.pending[island] = None
        return True

    def note(self, k: int, now: float) -> bool:
        """Start or stop the quorum clock and mark the quorum; whether the quorum was reached just now."""
        if self.answered < k:
            self.quorum_at = None
            if self.answered + len(self.owing - self.mute) < k:
                self.clock_at = None
            elif self.clock_at is None:
                self.clock_at = now
            return False
        if self.clock_at is None:
            self.clock_at = now
        reached = self.quorum_at is None
        if reached:
            self.quorum_at = now
        return reached

    def validate(self) -> None:
        """Check the invariants."""
        complete = {i for i, answer in self.answers.items() if answer.complete}
        assert self.complete == len(complete)
        assert self.departed == len(complete - set(self.members))
        assert not self.vacant & set(self.members) and not self.vacant & complete
        assert not self.mute & complete
        if self.stage is Stage.GATHERING:
            assert set(self.pending) == set(self.members) - complete
            assert set(self.answers) - complete <= set(self.pending)
            assert self.owing <= set(self.pending)


class Action(Enum):
    """What becomes of a gathering round."""

    WAIT = "wait"
    """Nothing until something happens or the verdict's time comes."""
    CLOSE = "close"
    """Merge what is complete."""
    RESTART = "restart"
    """Drop partial answers and begin the next attempt with the members of then."""


@dataclass(frozen=True)
class Verdict:
    """A decision about a round, when to decide again at the latest, and why."""

    action: Action
    reason: str
    due: float | None = None


@dataclass(frozen=True)
class Patience:
    """How long a round waits, and whether enough members are there to begin it again."""

    quorum_timeout_s: float
    upload_grace_s: float
    enough: bool


def judge(gathering: Round, k: int, patience: Patience, now: float) -> Verdict:
    """Decide about a gathering round whose clocks were noted for this `k` and `now`."""
    if gathering.answered >= k:
        return _judge_quorate(gathering, patience, now)
    if gathering.present < k:
        action = Action.RESTART if patience.enough else Action.WAIT
        return Verdict(action, f"only {gathering.present} of its islands are left and {k} answers are needed")
    if gathering.clock_at is None:
        return Verdict(Action.WAIT, f"{gathering.answered} of {k} answers")
    due = gathering.clock_at + patience.quorum_timeout_s
    if now < due:
        return Verdict(Action.WAIT, f"{gathering.answered} of {k} answers", due)
    action = Action.RESTART if patience.enough else Action.WAIT
    return Verdict(action, f"only {gathering.answered} of {k} answers within {patience.quorum_timeout_s:g} s")


def _judge_quorate(gathering: Round, patience: Patience, now: float) -> Verdict:
    """The same for a round that has its quorum."""
    if gathering.pending.keys() <= gathering.mute:
        return Verdict(Action.CLOSE, "all islands have answered")
    if not gathering.mute and not any(answer.weight for answer in gathering.answers.values() if answer.complete):
        # Islands that are done answer at once and have nothing to tell: closing would only turn away those who have.
        return Verdict(Action.WAIT, "nobody who answered has learned anything")
    assert gathering.quorum_at is not None
    over = gathering.quorum_at + gathering.grace_s
    if now < over:
        return Verdict(Action.WAIT, "grace after the quorum", over)
    moving = [answer.progressed_at for answer in gathering.answers.values() if not answer.complete]
    if moving:
        due = min(max(moving) + UPLOAD_IDLE_S, over + patience.upload_grace_s)
        if now < due:
            return Verdict(Action.WAIT, "uploads that make progress", due)
    return Verdict(Action.CLOSE, "the grace after the quorum is over")
