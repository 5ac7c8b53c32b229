"""A coordinator with a hand-moved clock and counted tokens, and the events of well-behaved islands around it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    CutInstalled,
    Done,
    Heartbeat,
    Hello,
    Leave,
    Pull,
    PushOffer,
    RankHello,
    Saved,
    SyncerMessage,
    ValueName,
    Welcome,
)
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminRequest
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.coordinator import Coordinator
from syncer.events import (
    AdoptInit,
    Commit,
    Effect,
    Event,
    InitAdopted,
    Log,
    Merge,
    MergeFinished,
    PeerGone,
    Received,
    Send,
    TimePassed,
    UploadCompleted,
    WriteTape,
)

SESSION = "session"
WIDTH = 4
"""Elements of each tensor."""


def small_layout(tensors: int = 2) -> Layout:
    """Tensors of one row each, one per fragment when P says so."""
    return make_layout(TensorSpec(f"w.{i}", (WIDTH,), "avg") for i in range(tensors))


def counted_tokens() -> Callable[[], str]:
    """`k1`, `k2`, … instead of random texts."""
    numbers = count(1)
    return lambda: f"k{next(numbers)}"


def initial_names(fragments: int) -> tuple[ValueName, ...]:
    """What the server names version 0."""
    return tuple(ValueName(f, 0, f"digest-{f}-0") for f in range(fragments))


def without_talk(effects: list[Effect]) -> list[Effect]:
    """Effects without log lines: those are for people and asserted on their own."""
    return [effect for effect in effects if not isinstance(effect, Log)]


class Desk:
    """Feeds a coordinator and remembers what came out. Every event ends in `validate()`."""

    def __init__(self, *, fragments: int = 2, **settings: Any) -> None:
        values: dict[str, Any] = {"fragments": fragments, "sync_every_steps": 1, "grace_cap_s": 0.0} | settings
        self.settings = SyncerSettings(**values)
        self.layout = small_layout(fragments)
        self.brain = Coordinator(self.settings, session=SESSION, tokens=counted_tokens())
        self.now = 0.0
        self.generation: dict[int, str] = {}
        self.token: dict[int, str] = {}
        self.effects: list[Effect] = []
        self._dials = count(1)
        self._pushes = count(1)

    # -- Events -------------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> list[Effect]:
        """Handle one event now, and what is due then, as a server does; its effects without talk."""
        effects = self.brain.handle(event, now=self.now)
        self.brain.validate()
        if (due := self.brain.next_wakeup) is not None and due <= self.now:
            effects += self.brain.handle(TimePassed(), now=self.now)
            self.brain.validate()
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Welcome):
                island = int(effect.peer.split("-")[1])
                self.generation[island], self.token[island] = effect.message.generation, effect.message.token
        return without_talk(effects)

    def at(self, now: float) -> list[Effect]:
        """Move the clock and let time pass."""
        self.now = now
        return self.take(TimePassed())

    def hello(self, island: int, **changes: Any) -> Hello:
        """A good Hello with its layout."""
        hello = Hello(
            island=island,
            nonce=f"nonce-{next(self._dials)}",
            fingerprint=self.layout.fingerprint,
            host=f"host-{island}",
            pid=100 + island,
            instance=f"instance-{island}",
            step=0,
            ranks=1,
            layout=self.layout,
        )
        return msgspec.structs.replace(hello, **changes)

    def boxes(self) -> tuple[Box, ...]:
        """The whole model."""
        return tuple(Box(i, (0,), (WIDTH,)) for i in range(len(self.layout.tensors)))

    def rank_hello(self, island: int) -> RankHello:
        """A good RankHello of an island of one rank."""
        return RankHello(SESSION, self.generation[island], self.token[island], 0, self.boxes())

    def join(self, island: int, life: int = 1, **changes: Any) -> list[Effect]:
        """An island with one rank joins; the effects of both messages."""
        effects = self.take(Received(control(island, life), self.hello(island, **changes)))
        return effects + self.take(Received(bulk(island, life), self.rank_hello(island)))

    def say(self, island: int, kind: type, life: int = 1, **fields: Any) -> list[Effect]:
        """A control message of an island's present generation."""
        message = kind(session=SESSION, generation=self.generation[island], **fields)
        return self.take(Received(control(island, life), message))

    def beat(self, island: int, step: int, life: int = 1) -> list[Effect]:
        return self.say(island, Heartbeat, life, step=step)

    def done(self, island: int, step: int = 100, life: int = 1) -> list[Effect]:
        return self.say(island, Done, life, step=step)

    def installed(self, island: int) -> list[Effect]:
        return self.say(island, CutInstalled)

    def saved(self, island: int) -> list[Effect]:
        return self.say(island, Saved)

    def leave(self, island: int) -> list[Effect]:
        return self.say(island, Leave, reason="told to")

    def gone(self, island: int, life: int = 1) -> list[Effect]:
        return self.take(PeerGone(control(island, life)))

    def provide(self) -> list[Effect]:
        """Island 0's initial uploads arrive and are adopted."""
        fragments = self.settings.fragments
        for fragment in range(fragments):
            self.take(UploadCompleted(f"{self.generation[0]}.init-1-{fragment}", 16))
        assert isinstance(self.effects[-1], AdoptInit)
        return self.take(InitAdopted(initial_names(fragments)))

    def ready(self, islands: int) -> list[Effect]:
        """Islands 0 … join and the run begins."""
        for island in range(islands):
            self.join(island)
        return self.provide()

    def value(self, fragment: int) -> ValueName:
        """The present value."""
        for effect in reversed(self.effects):
            if isinstance(effect, Commit) and effect.name.fragment == fragment:
                return effect.name
        return initial_names(self.settings.fragments)[fragment]

    def offer_of(self, island: int, t: int, **changes: Any) -> PushOffer:
        """A good offer: 2 steps of 10 tokens from the present value."""
        generation = self.generation[island]
        offer = PushOffer(
            session=SESSION,
            generation=generation,
            push=f"{generation}.{next(self._pushes)}",
            t=t,
            attempt=1,
            anchor=self.value((t - 1) % self.settings.fragments),
            steps=2,
            tokens=20,
            capture_step=2,
        )
        return msgspec.structs.replace(offer, **changes)

    def offer(self, island: int, t: int, life: int = 1, **changes: Any) -> str:
        """An island offers; the push id."""
        offer = self.offer_of(island, t, **changes)
        self.take(Received(control(island, life), offer))
        return offer.push

    def push(self, island: int, t: int, life: int = 1, **changes: Any) -> list[Effect]:
        """An island offers and uploads; the effects of the end of the upload."""
        return self.take(UploadCompleted(self.offer(island, t, life, **changes), 16))

    def empty(self, island: int, t: int, life: int = 1, **changes: Any) -> list[Effect]:
        """An island answers that it has learned nothing."""
        offer = self.offer_of(island, t, steps=0, tokens=0, **changes)
        return self.take(Received(control(island, life), offer))

    def merged(self, t: int, **changes: Any) -> list[Effect]:
        """The merge of an outer step ends."""
        event: dict[str, Any] = {"attempt": 1, "digest": f"digest-{t}", "merge_s": 0.5} | changes
        return self.take(MergeFinished(t, **event))

    # -- What came out ------------------------------------------------------------------------------------------------

    def sent(self, island: int, kind: type) -> list[Any]:
        """Every message of a kind sent to an island's control links."""
        return [
            e.message
            for e in self.effects
            if isinstance(e, Send) and e.peer.startswith(f"control-{island}-") and isinstance(e.message, kind)
        ]

    def tape(self, kind: type[tape_lines.SomeLine]) -> list[tape_lines.SomeLine]:
        """Every line of a kind on the tape."""
        return [e.line for e in self.effects if isinstance(e, WriteTape) and isinstance(e.line, kind)]

    def commits(self) -> list[tuple[int, int]]:
        """(outer step, fragment) of every commit that published."""
        return [(e.t, e.name.fragment) for e in self.effects if isinstance(e, Commit)]

    def merges(self) -> list[Merge]:
        return [e for e in self.effects if isinstance(e, Merge)]

    def pulled(self, island: int) -> list[tuple[int, int]]:
        """(outer step, attempt) of every pull."""
        return [(pull.t, pull.attempt) for pull in self.sent(island, Pull)]


def pushed(island: int, offer: PushOffer) -> WriteTape:
    """The line of the tape for an admitted push."""
    anchor = offer.anchor
    line: dict[str, Any] = {"island": island, "generation": offer.generation, "push": offer.push, "t": offer.t}
    line |= {"fragment": anchor.fragment, "base_version": anchor.version, "base_digest": anchor.digest}
    line |= {name: getattr(offer, name) for name in ("steps", "tokens", "capture_step")}
    return WriteTape(tape_lines.Pushed(**line))


def control(island: int, life: int = 1) -> str:
    return f"control-{island}-{life}"


def bulk(island: int, life: int = 1) -> str:
    return f"bulk-{island}-{life}"


def messages(effects: list[Effect]) -> list[SyncerMessage]:
    """What is sent, in order."""
    return [effect.message for effect in effects if isinstance(effect, Send)]


def finished(islands: int = 2, **settings: Any) -> Desk:
    """A run whose final cut is out: every island was done at once and had learned nothing."""
    desk = Desk(expected_islands=islands, **settings)
    desk.ready(islands)
    for island in range(islands):
        desk.done(island)
    for t in (1, 2, 3, 4):
        for island in range(islands):
            desk.empty(island, t)
    assert desk.brain.status().phase == "final"
    return desk


OPERATOR = "operator"


def order(desk: Desk, command: AdminCommand, **fields: Any) -> list[Effect]:
    """Give an order; its effects without the tape line."""
    effects = desk.take(Received(OPERATOR, AdminRequest("n", "", command, **fields)))
    return [e for e in effects if not (isinstance(e, WriteTape) and isinstance(e.line, tape_lines.Admin))]
