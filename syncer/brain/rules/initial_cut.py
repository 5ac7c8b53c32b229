"""The initial values: asked of island 0 once the expected islands are there, one transaction of one generation.

Knows nothing of rounds. An upload that fails, or a generation that ends, before all fragments are there discards
everything and asks again; once the run has begun nothing here does anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import InitWanted, ValueName
from swift_diloco.core.layout.fragments import fragment_elements
from syncer.brain.memory.history import Values
from syncer.brain.memory.phase import PROVIDER, Phase
from syncer.brain.memory.roster import Member
from syncer.brain.memory.state import State
from syncer.brain.rules.durability import Durability
from syncer.events import AdoptInit, AnnounceAll, DropUpload, OpenUpload, UploadCompleted, UploadFailed, UploadNews

F32_BYTES = 4


class Progress(Enum):
    """How far the initial values are."""

    UNASKED = "unasked"
    """Nobody was asked, or what was asked for did not come."""
    ARRIVING = "arriving"
    """Uploads of the transaction are on their way."""
    ADOPTING = "adopting"
    """Its uploads are whole; the server makes values of them."""
    NAMED = "named"
    """The values are there, and nobody has heard of them."""
    BEGUN = "begun"
    """The run began with them."""


FOLLOWS: dict[Progress, frozenset[Progress]] = {
    Progress.UNASKED: frozenset({Progress.ARRIVING}),
    Progress.ARRIVING: frozenset({Progress.UNASKED, Progress.ADOPTING}),
    Progress.ADOPTING: frozenset({Progress.NAMED}),
    Progress.NAMED: frozenset({Progress.BEGUN}),
    Progress.BEGUN: frozenset(),
}
"""How far they may be next. What was adopted does not depend on its provider any more."""


@dataclass
class Transaction:
    """What one generation was asked for."""

    generation: str
    uploads: dict[str, bool]
    """In fragment order: whether each is complete."""
    run: str = ""
    """The run that its values begin."""
    names: tuple[ValueName, ...] = field(default=())


class InitialCut:
    """Asks for the initial values and adopts them."""

    def __init__(self, state: State, durability: Durability) -> None:
        self._state = state
        self._durability = durability
        self._progress = Progress.UNASKED
        self._asked = 0
        self._transaction = Transaction("", {})

    def _enter(self, progress: Progress) -> None:
        """The only way from one to the other."""
        assert progress in FOLLOWS[self._progress], (
            f"the initial values: {progress.value} cannot follow {self._progress.value}"
        )
        self._progress = progress

    def consider(self) -> None:
        """Ask if it is time to."""
        state = self._state
        if state.phase is not Phase.INIT or self._progress is not Progress.UNASKED:
            return
        self._enter(Progress.ARRIVING)
        provider = state.roster.members[PROVIDER]
        self._asked += 1
        uploads = tuple(f"{provider.generation}.init-{self._asked}-{f}" for f in range(state.fragments))
        self._transaction = Transaction(provider.generation, dict.fromkeys(uploads, False))
        for fragment, upload in enumerate(uploads):
            state.do(OpenUpload(upload, provider.generation, fragment, Encoding.F32))
        state.send(provider, InitWanted(state.session, provider.generation, uploads))
        state.log("info", f"asking {provider} for the initial values")

    def expects(self, upload: str) -> bool:
        """Whether an upload belongs to the transaction."""
        return self._progress is Progress.ARRIVING and upload in self._transaction.uploads

    def transferred(self, event: UploadNews) -> None:
        """News of an upload of the transaction."""
        match event:
            case UploadCompleted(upload):
                self._transaction.uploads[upload] = True
                if all(self._transaction.uploads.values()):
                    self._adopt()
            case UploadFailed(failed, reason):
                self._discard([upload for upload in self._transaction.uploads if upload != failed], reason)

    def _adopt(self) -> None:
        self._enter(Progress.ADOPTING)
        self._transaction.run = self._state.tokens()
        self._state.do(AdoptInit(tuple(self._transaction.uploads), self._transaction.run, not self._durability.durable))

    def ended(self, member: Member) -> None:
        """A generation ended; the server has dropped its unfinished uploads."""
        if self._progress is Progress.ARRIVING and member.generation == self._transaction.generation:
            complete = [upload for upload, complete in self._transaction.uploads.items() if complete]
            self._discard(complete, "its generation ended")

    def _discard(self, uploads: list[str], reason: str) -> None:
        self._enter(Progress.UNASKED)
        for upload in uploads:
            self._state.do(DropUpload(upload, f"the initial values are asked for again: {reason}"))
        self._state.log("warning", f"the initial values did not arrive whole: {reason}")

    def adopted(self, names: tuple[ValueName, ...]) -> None:
        """The initial values are there: a run begins, as soon as the checkpoints allow it."""
        assert [name.fragment for name in names] == list(range(self._state.fragments))
        self._enter(Progress.NAMED)
        self._transaction.names = names
        if self._durability.durable:
            self._durability.write_initial(names, self._transaction.run)
        self.begin()

    def begin(self) -> None:
        """Begin the run, if there are values that may be heard of and have not been."""
        state, names = self._state, self._transaction.names
        if self._progress is not Progress.NAMED or not self._durability.initial_is_safe:
            return
        self._enter(Progress.BEGUN)
        assert state.layout is not None and state.plan is not None
        state.values, state.run = Values(names), self._transaction.run
        state.starting = self._durability.on_start
        if self._durability.durable:
            state.do(AnnounceAll())
        for member in state.roster.members.values():
            member.counts_from = [member.clock.step] * state.fragments
            member.clock.interrupt()
        sizes = [fragment_elements(state.layout, state.plan, f) for f in range(state.fragments)]
        fragments = tuple(
            tape_lines.FragmentSize(f, len(state.plan.fragments[f]), sizes[f], F32_BYTES * sizes[f])
            for f in range(state.fragments)
        )
        state.tape(tape_lines.Init(run=state.run, fragments=fragments, layout=state.layout.fingerprint))
        state.log("info", f"run {state.run} begins: {state.fragments} fragments, {sum(sizes)} parameters")
