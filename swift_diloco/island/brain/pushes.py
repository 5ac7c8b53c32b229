"""Which pulls are open, and what this island answers them with. Pure; part of the session.

A pull is answered at a boundary, once the fragment's anchor is not spent, at least H successful steps were counted
since its install (waived once the island is done), and no newer value of it waits to be installed: a pull may overtake
the publication it depends on. Invariant: one open pull per fragment, one unsettled push per anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats.messages import Contract, Dropped, Outcome, Pull, PullClosed, PushAnswer, PushOffer
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.island.brain.terms import ordinary_align
from swift_diloco.island.events import Align, Capture, Effect, ForgetUpload, Log, Tell


@dataclass(frozen=True)
class Offerer:
    """The island as it stands when it answers."""

    session: str
    generation: str
    contract: Contract
    step: int
    done: bool


class Pushes:
    """The open pulls of one island, and the pushes that answer them."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._pulls: dict[int, Pull] = {}
        self._count = 0

    def void(self) -> None:
        """The generation is over, or no round will come any more: nothing is asked."""
        self._pulls.clear()

    def pulled(self, message: Pull) -> None:
        self._pulls[message.fragment] = message

    def closed(self, message: PullClosed) -> None:
        open_pull = self._pulls.get(message.fragment)
        if open_pull is not None and open_pull.t <= message.t:
            del self._pulls[message.fragment]

    def answered(self, message: PushAnswer) -> list[Effect]:
        """The syncer took or refused a push; only the refusal "anchor held" leaves the anchor spent."""
        refused = message.outcome is Outcome.REFUSED
        for anchor in self._holdings.anchors:
            anchor.answered(message.push, spent=not refused or message.anchor_held)
        forget = ForgetUpload(message.push, arrived=not refused)
        if not refused:
            return [forget]
        return [forget, Log("info", f"push {message.push} was not taken: {message.reason}")]

    def dropped(self, message: Dropped) -> list[Effect]:
        """A push that was on its way or held is gone: its anchor is free again."""
        lost = sum(anchor.pushed_steps for anchor in self._holdings.anchors if anchor.push == message.push)
        for anchor in self._holdings.anchors:
            anchor.answered(message.push, spent=False)
            if message.anchor is not None and anchor.is_same(message.anchor):
                anchor.settle(held=False)  # the push was an earlier life's of this island
        forget = ForgetUpload(message.push, arrived=False)
        if not lost:  # an empty answer, or one whose anchor was replaced since: nothing changes for the island
            return [forget]
        return [forget, Log("info", f"push {message.push} ({lost} steps) was dropped: {message.reason}")]

    def answer(self, offerer: Offerer) -> list[Effect]:
        """Answer every pull that can be, in the order of their outer steps."""
        effects: list[Effect] = []
        for pull in sorted(self._pulls.values(), key=lambda pull: pull.t):
            effects += self._offer(pull, offerer)
        return effects

    def _offer(self, pull: Pull, offerer: Offerer) -> list[Effect]:
        anchor = self._holdings.anchors[pull.fragment]
        if anchor.name is None or anchor.spent or pull.fragment in self._holdings.pending:
            return []
        if anchor.steps < offerer.contract.sync_every_steps and not offerer.done:
            return []
        del self._pulls[pull.fragment]
        self._count += 1
        offer = PushOffer(
            session=offerer.session,
            generation=offerer.generation,
            push=f"{offerer.generation}.{self._count}",
            t=pull.t,
            attempt=pull.attempt,
            anchor=anchor.name,
            steps=anchor.steps,
            tokens=anchor.tokens,
            capture_step=offerer.step,
        )
        anchor.offered(offer.push)
        keep = ordinary_align(offerer.contract) is Align.CARRY
        capture = [Capture(offer.push, pull.fragment, anchor.steps, keep)] if anchor.steps else []
        return [*capture, Tell(offer)]
