"""What the parts of the coordinator share: the settings, who is there, which rounds are open, and the effects collected
while one event is handled.

Knows no rules beyond counting: those are in `rules/`, and they change it.

Invariants: the open rounds are outer steps `committed + 1 … launched`, in order and on distinct fragments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swift_diloco.core.formats.messages import SyncerMessage, ValueName
from swift_diloco.core.formats.tape_lines import TapeLine
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory.deadlines import Deadlines
from syncer.brain.memory.held_anchors import HeldAnchors
from syncer.brain.memory.history import Values
from syncer.brain.memory.pacing import pipeline_of, quorum_of
from syncer.brain.memory.phase import PROVIDER, Phase
from syncer.brain.memory.roster import Member, Roster
from syncer.brain.memory.round import Late, Leaving, Round, Stage
from syncer.events import Effect, Log, Send, WriteTape

ROUND = "round"
"""Kind of the deadline at which a round is decided about again."""


@dataclass(eq=False)
class State:
    """The coordinator's memory."""

    settings: SyncerSettings
    session: str
    tokens: Callable[[], str]
    now: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    roster: Roster = field(default_factory=Roster)
    deadlines: Deadlines = field(default_factory=Deadlines)
    held: HeldAnchors = field(default_factory=HeldAnchors)
    layout: Layout | None = None
    plan: FragmentPlan | None = None
    run: str = ""
    values: Values | None = None
    rounds: dict[int, Round] = field(default_factory=dict)
    uploads: dict[str, tuple[Round, int]] = field(default_factory=dict)
    """Uploads of pushes that are not complete: their round and island."""
    late: dict[str, Late] = field(default_factory=dict)
    """Pushes that missed their round and still arrive, by push."""
    carried: dict[tuple[int, int], Late] = field(default_factory=dict)
    """Complete pushes that missed their round, by island and fragment, oldest first, until they are merged."""
    durable_pushes: frozenset[str] = frozenset()
    """Carried pushes that a checkpoint has which a crash may go back to."""
    leaving: dict[str, Leaving] = field(default_factory=dict)
    """Carried pushes that were dropped and are durable: their anchors stay held until they are not."""
    launched: int = 0
    committed: int = 0
    launched_at: float = float("-inf")
    sync_s: float = 0.0
    """How long the last merge took."""
    last_t: int | None = None
    """Outer step with which the run ends; set while every member is done."""
    final: tuple[ValueName, ...] = ()
    """The final cut."""
    unsaved: set[int] = field(default_factory=set)
    """Islands of the final cut that have not said Saved."""
    awaited: set[int] = field(default_factory=set)
    """Islands whose work is in a resumed run and that have not joined again; the run does not end without them while
    their lease would last."""
    returning: bool = False
    """The syncer was just started again: rounds wait a moment for `awaited`."""
    overrides: dict[str, int] = field(default_factory=dict)
    """Settings that an operator changed while the run went on; they outlive this process."""
    barred_until: dict[int, float] = field(default_factory=dict)
    """Islands that were kicked, and until when they are not taken again."""
    started_with: dict[str, int] = field(default_factory=dict)
    """What the settings that may change were at the start of this process."""
    checkpoint_wanted: bool = False
    """A checkpoint is asked for that has not begun."""
    starting: bool = False
    """The first round waits for a checkpoint."""
    saving: str = ""
    """The checkpoint that is being written, in words."""
    saved_step: int | None = None
    """Outer step of the newest checkpoint."""
    save_fault: str = ""
    """Why the last checkpoint could not be written."""
    stopping: bool = False
    exited: bool = False

    @property
    def phase(self) -> Phase:
        """What the run is doing."""
        if self.exited:
            return Phase.ENDED
        if self.final:
            return Phase.FINAL
        if self.stopping:
            return Phase.STOPPING
        here = self.roster.members
        if self.values is None:
            return Phase.JOINING if PROVIDER not in here or len(here) < self.expected else Phase.INIT
        if len(here) < self.settings.min_islands:
            return Phase.PAUSED
        return Phase.TRAINING if self.last_t is None else Phase.FINISHING

    @property
    def ready(self) -> Round | None:
        """The round that can be committed now: its turn has come and its result is there."""
        first = self.rounds.get(self.committed + 1)
        return first if first is not None and first.stage is Stage.READY else None

    @property
    def fragments(self) -> int:
        """P."""
        assert self.plan is not None
        return len(self.plan)

    @property
    def pipeline(self) -> int:
        """Most rounds open at once."""
        return pipeline_of(self.settings.pipeline, self.fragments, self.settings.sync_every_steps)

    @property
    def idle(self) -> bool:
        """Whether rounds wait for islands to come back: for a moment in any case, and as long as those who are here
        are done and have nothing more to say."""
        all_done = self.last_t is None and self.roster.done == len(self.roster.members)
        return bool(self.awaited) and (self.returning or all_done)

    @property
    def expected(self) -> int:
        """Islands needed for a cold start."""
        return max(self.settings.expected_islands, self.settings.min_islands)

    def is_late(self, island: int, fragment: int) -> bool:
        """Whether a push that missed its round still arrives."""
        return any(late.answer.island == island and late.fragment == fragment for late in self.late.values())

    def quorum(self, present: int) -> int:
        """K for a round of `present` islands."""
        return quorum_of(self.settings.quorum, self.settings.min_islands, present)

    def send(self, member: Member, message: SyncerMessage) -> None:
        """Send to an island, unless its control link is known to be closed."""
        if member.linked:
            self.effects.append(Send(member.peer, message))

    def send_to(self, island: int, generation: str, message: SyncerMessage) -> None:
        """Send to a generation if it is still there."""
        member = self.roster.islands.get(island)
        if member is not None and member.generation == generation:
            self.send(member, message)

    def do(self, effect: Effect) -> None:
        """Want an effect."""
        self.effects.append(effect)

    def tape(self, line: TapeLine) -> None:
        """Want a line on the event tape."""
        self.effects.append(WriteTape(line))

    def log(self, level: str, text: str) -> None:
        """Want people told."""
        self.effects.append(Log(level, text))

    def validate(self) -> None:
        """Check the invariants."""
        self.roster.validate()
        assert list(self.rounds) == list(range(self.committed + 1, self.launched + 1)), "rounds are not contiguous"
        assert len({r.fragment for r in self.rounds.values()}) == len(self.rounds), "two rounds on one fragment"
        for t, each in self.rounds.items():
            assert each.t == t
            each.validate()
        arriving = {
            answer.push for each in self.rounds.values() for answer in each.answers.values() if not answer.complete
        }
        assert set(self.uploads) == arriving, "uploads and answers differ"
        for (island, fragment), late in self.carried.items():
            assert late.answer.complete and (late.answer.island, late.fragment) == (island, fragment)
        assert self.leaving.keys() <= self.durable_pushes, "a dropped push waits for nothing"
        for push, late in self.late.items():
            assert late.answer.push == push and not late.answer.complete
