"""The initial values: asked of island 0 once the expected islands are there, one transaction of one generation.

Knows nothing of rounds. An upload that fails, or a generation that ends, before all fragments are there discards
everything and asks again; once the values exist nothing here does anything.
"""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import InitWanted, ValueName
from swift_diloco.core.layout.fragments import fragment_elements
from syncer.brain.memory.history import Values
from syncer.brain.memory.phase import PROVIDER, Phase
from syncer.brain.memory.roster import Member
from syncer.brain.memory.state import State
from syncer.brain.rules.durability import Durability
from syncer.events import AdoptInit, AnnounceAll, DropUpload, OpenUpload

F32_BYTES = 4


class InitialCut:
    """Asks for the initial values and adopts them."""

    def __init__(self, state: State, durability: Durability) -> None:
        self._state = state
        self._durability = durability
        self._arriving: dict[str, bool] = {}
        """Uploads of the transaction in fragment order: whether each is complete."""
        self._generation = ""
        self._asked = 0
        self._adopting = False
        """Its uploads are whole; the server makes values of them."""
        self._named: tuple[ValueName, ...] = ()
        """The values it made, until the run begins with them."""
        self._run = ""

    def consider(self) -> None:
        """Ask if it is time to."""
        state = self._state
        if state.phase is not Phase.INIT or self._arriving or self._adopting:
            return
        provider = state.roster.members[PROVIDER]
        self._asked += 1
        uploads = tuple(f"{provider.generation}.init-{self._asked}-{f}" for f in range(state.fragments))
        self._generation = provider.generation
        self._arriving = dict.fromkeys(uploads, False)
        for fragment, upload in enumerate(uploads):
            state.do(OpenUpload(upload, provider.generation, fragment, "f32"))
        state.send(provider, InitWanted(state.session, provider.generation, uploads))
        state.log("info", f"asking {provider} for the initial values")

    def expects(self, upload: str) -> bool:
        """Whether an upload belongs to the transaction."""
        return upload in self._arriving

    def completed(self, upload: str) -> None:
        """An upload of the transaction is complete."""
        self._arriving[upload] = True
        if all(self._arriving.values()):
            self._run = self._state.tokens()
            self._state.do(AdoptInit(tuple(self._arriving), self._run, not self._durability.durable))
            self._adopting, self._arriving = True, {}

    def failed(self, upload: str, reason: str) -> None:
        """An upload of the transaction failed for good."""
        self._discard([other for other in self._arriving if other != upload], reason)

    def ended(self, member: Member) -> None:
        """A generation ended; the server has dropped its unfinished uploads."""
        if self._arriving and member.generation == self._generation:
            self._discard([upload for upload, complete in self._arriving.items() if complete], "its generation ended")

    def _discard(self, uploads: list[str], reason: str) -> None:
        for upload in uploads:
            self._state.do(DropUpload(upload, f"the initial values are asked for again: {reason}"))
        self._arriving = {}
        self._state.log("warning", f"the initial values did not arrive whole: {reason}")

    def adopted(self, names: tuple[ValueName, ...]) -> None:
        """The initial values are there: a run begins, as soon as the checkpoints allow it."""
        assert self._adopting and [name.fragment for name in names] == list(range(self._state.fragments))
        self._named = names
        if self._durability.durable:
            self._durability.write_initial(names, self._run)
        self.begin()

    def begin(self) -> None:
        """Begin the run, if there are values that may be heard of and have not been."""
        state = self._state
        if not self._named or not self._durability.initial_is_safe:
            return
        assert state.layout is not None and state.plan is not None
        state.values, state.run = Values(self._named), self._run
        self._named, self._adopting = (), False
        state.starting = self._durability.on_start
        if self._durability.durable:
            state.do(AnnounceAll())
        for member in state.roster.members.values():
            member.installed = [member.clock.step] * state.fragments
            member.clock.interrupt()
        sizes = [fragment_elements(state.layout, state.plan, f) for f in range(state.fragments)]
        fragments = tuple(
            tape_lines.FragmentSize(f, len(state.plan.fragments[f]), sizes[f], F32_BYTES * sizes[f])
            for f in range(state.fragments)
        )
        state.tape(tape_lines.Init(run=state.run, fragments=fragments, layout=state.layout.fingerprint))
        state.log("info", f"run {state.run} begins: {state.fragments} fragments, {sum(sizes)} parameters")
