"""One island, as its trainer sees it: join, exchange at every step boundary, finish. The shell around `Session`.

Knows no trainer (that is `ModelPieces` and `RankGroup`) and takes no decision of its own. Every rank runs one `Island`;
all public methods but `close` are collective. At a boundary rank 0 shares its clock and what its control link heard,
all ranks feed that to the same session, vote on what is staged, and perform the same effects on their own pieces.
A vote covers what it follows: whatever fails on one rank raises on all, before anything is said, trained or saved
after it, and leaves nobody alone in a collective.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import msgspec

from swift_diloco.core.errors import DilocoError, PeerError, UserError
from swift_diloco.core.files.key_files import CurveKeys
from swift_diloco.core.files.story_files import tell
from swift_diloco.core.formats.frames import decode_header
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.core.story.recorder import Story
from swift_diloco.island import events
from swift_diloco.island.brain.session import Session
from swift_diloco.island.brain.stages import Membership, Profile, TrainingStage
from swift_diloco.island.files.record import SavedRank, resume, save_record
from swift_diloco.island.files.record_files import RECORD_FORMAT, Record
from swift_diloco.island.links.bulk_link import BulkLink
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.island.links.island_keys import decode_keys, encode_keys, island_keys
from swift_diloco.island.numbers.host_buffers import HostBuffers
from swift_diloco.island.numbers.model_pieces import ModelPieces
from swift_diloco.island.performer import Introduction, Links, Performer
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.island.ranks.together import all_or_none, from_rank_0

POLL_S = 0.05
"""Longest sleep of a waiting island before its ranks look at their staged values again (rank 0 wakes on a message)."""

PARKED_POLL_S = 1.0
"""Longest time between two exchanges of parked ranks, so that no collective of ours is ever long."""

PROGRESS_S = 30.0
"""A wait that does not change is told again after this long."""

LAST_WORD_S = 10.0
"""How long a finished island tries to reach the syncer again to say that it has saved."""

LEAVE_REASON_CHARACTERS_MAX = 500
"""An error's text is cut to this length on its way to the syncer."""

logger = logging.getLogger("swift_diloco")


@dataclass(frozen=True)
class JobFacts:
    """What the island must know of its trainer's job."""

    step: int
    """The iteration it starts from (0: from scratch)."""
    instance: str
    """Token of the job's run folder; a restart of the same job has the same one."""
    address: Callable[[], str]
    """Where the syncer is; called on rank 0 only, may start it."""
    revive: Callable[[str], None] | None = None
    """The syncer at this address is gone without a word; called on rank 0, returns at once, may start it again."""
    resumed_from: Path | None = None
    """The trainer checkpoint that was loaded, if one was."""
    folder: Path | None = None
    """Its run folder, where the story of a session that raises is written; None: the working directory."""


@dataclass(frozen=True)
class Instruction:
    """What the trainer must do after a boundary."""

    stop: bool = False
    """This step is the last one."""
    save: bool = False
    """Write a checkpoint at this step."""
    final: bool = True
    """When stopping: `finish` is to be called, for the run ends and not just this job."""
    reason: str = ""


class BoundaryNews(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 shares at a boundary: its clock (s) and what its control link heard (None: the link broke)."""

    now: float
    items: tuple[bytes | None, ...]


class Island:
    """One rank's part of an island. The constructor opens nothing; `start` joins."""

    def __init__(self, settings: IslandSettings, model: ModelPieces, group: RankGroup, job: JobFacts) -> None:
        self.settings = settings
        self.model = model
        self.group = group
        self.job = job
        self.session: Session
        self.story: Story
        self.performer: Performer
        self.layout: Layout
        self.blocked_s = 0.0
        """Time spent in boundaries since the start (s)."""
        self._links = Links(None, None, HostBuffers())
        self._failure: Exception | None = None
        self.instruction = Instruction()
        """What the trainer must do, as of the latest boundary; an order to stop stays."""
        self._now = 0.0
        self._last_told = ("", 0.0)
        self._closed = False

    # -- the trainer's side --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join, then wait for the initial values and install them.

        Raises `UserError` (no syncer there, another model, an id in use) or `PeerError` (no initial values in time).
        """
        self._prepare()
        begun = self._exchange()
        self._feed(events.Started())
        while not self.session.may_train(self._now) and not self.instruction.stop:
            self._boundary(wait_s=POLL_S)
            self._check_start_limits(self._now - begun)
            self._tell_wait()
        self._feed(events.StartEnded())

    def step_begins(self) -> Instruction:
        """The second gate, before a step is trained: a paused island parks here after a save it was ordered to do."""
        entered = time.monotonic()
        # A save that was ordered is done since the last boundary; left in, it would keep the gate open.
        self.instruction = replace(self.instruction, save=False)
        self._park()
        self.blocked_s += time.monotonic() - entered
        return self.instruction

    def step_ended(self, step: int, *, trained: bool, tokens: int) -> Instruction:
        """A local step boundary: counters, messages, installs, pushes, then the gate (parks while the run is paused).

        `trained`: the optimizer updated; `tokens`: supervised tokens of that update over the whole island.
        """
        entered = time.monotonic()
        self.instruction = replace(self.instruction, save=False) if self.instruction.stop else Instruction()
        if self._links.control is not None:
            self._links.control.progressed(step)
        self._feed(events.StepEnded(step, trained, tokens))
        self._boundary()
        self._park()
        self.blocked_s += time.monotonic() - entered
        return self.instruction

    def _park(self) -> None:
        """All ranks idle together while the run is paused; what an operator orders is obeyed at once."""
        while not self.session.may_train(self._now) and not (self.instruction.stop or self.instruction.save):
            self._tell_wait()
            self._boundary(wait_s=PARKED_POLL_S)

    def finish(self, step: int) -> None:
        """At the last step: answer what is still asked, wait for the final cut and install it. Raises `PeerError`."""
        if self._links.control is not None:
            self._links.control.progressed(step)
        self._feed(events.LastStepReached())
        begun = self._exchange()
        while self.session.stage is not TrainingStage.FINISHED:
            self._boundary(wait_s=POLL_S)
            self._tell_wait()
            waited = self._now - begun
            if waited > self.settings.finish_timeout_s:
                raise PeerError(
                    f"no final cut within finish_timeout_s={self.settings.finish_timeout_s:g}: "
                    f"waiting for {self.session.waiting_for()}; the model was not saved with the final values"
                )
        self.performer.log("info", "the final cut is in the model")

    def save(self, folder: Path, step: int) -> None:
        """Write the sync record (and the anchors, if wanted) into a trainer checkpoint of this step."""
        holdings, store, pieces = self.session.holdings, self.performer.values, self.performer.pieces
        if holdings.plan is None or store is None or pieces is None:
            return  # never welcomed: there is nothing to remember
        record = Record(
            format=RECORD_FORMAT,
            iteration=step,
            island=self.settings.island_id,
            run=holdings.run,
            layout=self.layout.fingerprint,
            contract=self.session.contract,
            plan=holdings.plan,
            fragments=holdings.records(),
        )
        anchors = store.anchors if self.settings.save_anchors else {}
        save_record(folder, record, SavedRank(self.group, pieces, anchors))

    def metrics(self) -> dict[str, float]:
        """Where this rank of the island stands, as numbers for the trainer's log. Not collective."""
        named = [anchor for anchor in self.session.holdings.anchors if anchor.name is not None]
        versions = [anchor.name.version for anchor in named if anchor.name is not None]
        traffic = self.performer.traffic
        return {
            "outer_step": float(max(versions, default=0)),
            "oldest_version": float(min(versions, default=0)),
            "steps_since_install": float(max((anchor.steps for anchor in named), default=0)),
            "blocked_s": self.blocked_s,
            "pushed_bytes": float(traffic.pushed_bytes),
            "fetched_bytes": float(traffic.fetched_bytes),
        }

    def saved(self) -> None:
        """The trainer's last save is durable: the syncer may forget this island."""
        begun = self._exchange()
        while self.session.parted() and self._now - begun < LAST_WORD_S:  # else the syncer lingers without us
            self._boundary(wait_s=POLL_S)
        self._feed(events.SaveFinished())

    def close(self, error: BaseException | None = None) -> None:
        """Leave (with the reason, if training failed) and close the links. Not collective, idempotent."""
        if self._closed:
            return
        self._closed = True
        if error is not None and self._links.control is not None:
            self._feed(events.Left(f"{type(error).__name__}: {error}"[:LEAVE_REASON_CHARACTERS_MAX]))
        for link in (self._links.bulk, self._links.control):
            if link is not None:
                link.close()
        self.group.close()

    # -- start ---------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Agree on the layout, the address and a life token; open the links."""
        specs = self.group.gather(msgspec.msgpack.encode(list(self.model.specs())))
        self.layout = msgspec.msgpack.decode(from_rank_0(self.group, lambda: _merged_layout(specs)), type=Layout)
        boxes = tuple(sorted(self.model.boxes(self.layout)))
        owns = self.group.gather(b"1" if boxes else b"")
        life = from_rank_0(self.group, lambda: secrets.token_hex(8).encode()).decode()
        keys = decode_keys(from_rank_0(self.group, lambda: encode_keys(island_keys(self.settings))))
        address = from_rank_0(self.group, lambda: self.job.address().encode()).decode()
        profile = Profile(
            island=self.settings.island_id,
            life=life,
            step=self.job.step,
            initial_cut_timeout_s=self.settings.initial_cut_timeout_s,
            init_probe_s=self.settings.init_probe_s,
            heartbeats=self.settings.heartbeat_s > 0,
        )
        resumed = resume(self.job.resumed_from, self.job.step, self.layout, boxes, self.group)
        self.session = Session(profile, resumed.remembered)
        self.story = Story(f"island-{self.settings.island_id}", self.session)
        self._links = self._open_links(address, keys, owns_pieces=bool(boxes))
        owners = sum(1 for flag in owns if flag)
        about = Introduction(self.settings.island_id, self.job.instance, self.layout, boxes, owners)
        self.performer = Performer(self.model, self._links, about, resumed)

    def _open_links(self, address: str, keys: CurveKeys | None, *, owns_pieces: bool) -> Links:
        control, bulk, buffers = None, None, HostBuffers()
        if self.group.rank == 0:
            s = self.settings
            control = ControlLink(address, heartbeat_s=s.heartbeat_s, stall_s=s.heartbeat_stall_s, keys=keys)
            control.progressed(self.job.step)
            control.start()
            logger.info("island %d: looking for the syncer at %s", s.island_id, address)
        if owns_pieces:
            bulk = BulkLink(address, self.group.rank, buffers, keys)
            bulk.start()
        return Links(control, bulk, buffers)

    def _check_start_limits(self, waited_s: float) -> None:
        s = self.settings
        if self.session.membership is Membership.DIALING and waited_s > s.connect_timeout_s:
            control = self._links.control
            trouble = f" ({control.trouble})" if control is not None and control.trouble else ""
            raise UserError(
                f"no syncer answered at {self._address_text()} within "
                f"connect_timeout_s={s.connect_timeout_s:g}{trouble}; "
                "check the address, that the syncer runs and that its port is reachable"
            )
        if s.initial_cut_timeout_s and waited_s > s.initial_cut_timeout_s:
            raise PeerError(
                f"no initial values within initial_cut_timeout_s={s.initial_cut_timeout_s:g}: "
                f"waiting for {self.session.waiting_for()}"
            )

    def _address_text(self) -> str:
        control = self._links.control
        return control.address if control is not None else "the syncer's address (see rank 0)"

    # -- boundaries ----------------------------------------------------------------------------------------------------

    def _exchange(self, wait_s: float = 0.0) -> float:
        """Rank 0's news to everybody, and into the session. Returns rank 0's clock."""
        news = BoundaryNews(0.0, ())
        if self._links.control is not None:
            if wait_s:
                self._links.control.wait(wait_s)
            news = BoundaryNews(time.monotonic(), tuple(self._links.control.drain()))
        news = msgspec.msgpack.decode(self.group.broadcast(msgspec.msgpack.encode(news)), type=BoundaryNews)
        self._now = news.now
        for item in news.items:
            self._feed(events.LinkLost() if item is None else events.Heard(decode_header(item)))
        return news.now

    def _boundary(self, wait_s: float = 0.0) -> None:
        self._exchange(wait_s)
        wanted = self.session.wanted()
        mine = self.performer.reserve(wanted)
        self._note_failures()
        *agreed, healthy = self.group.all_true([*mine, self._failure is None])
        if not healthy:
            all_or_none(self.group, self._fail)
        for name, here, everywhere in zip(wanted, mine, agreed, strict=True):
            if here and not everywhere:
                self.performer.release(name)
        staged = tuple(name for name, everywhere in zip(wanted, agreed, strict=True) if everywhere)
        self._feed(events.BoundaryReached(staged))

    def _note_failures(self) -> None:
        """Remember why this rank cannot go on, for the vote."""
        try:
            self.performer.check()
        except DilocoError as error:
            self._failure = self._failure or error

    def _fail(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _feed(self, event: events.Event) -> None:
        """One event into the session, its effects performed: deeds on every rank, then words, then what they mean for
        the training. Nothing is said, trained or saved after a deed that failed on any rank."""
        try:
            effects = self.story.handle(event, now=self._now)
        except Exception as error:
            if self.group.rank == 0:  # all ranks run the same session on the same events: it raises on all
                tell(self.story, self.job.folder or Path(), error)
            raise
        deeds, words, ends = events.sorted_out(effects)
        self._perform(deeds)
        for word in words:
            self._say(word)
        for end in ends:
            self._decide(end)

    def _perform(self, deeds: Sequence[events.Deed]) -> None:
        """The one vote on effects: every rank does its own part, then all carry on together or raise together. What is
        collective comes after all have done their own, so that a rank which fails leaves nobody waiting."""
        if deeds:
            all_or_none(self.group, lambda: self.performer.perform(deeds))
        if installs := events.installs_of(deeds):
            all_or_none(self.group, lambda: self.performer.spread(installs))

    def _say(self, word: events.Word) -> None:
        """What cannot even be said (rank 0) waits for the next vote: it is no part of the model."""
        try:
            self.performer.say(word)
        except Exception as error:
            logger.exception("rank %d could not say %s", self.group.rank, type(word).__name__)
            self._failure = self._failure or error

    def _decide(self, effect: events.TrainingEffect) -> None:
        """Effects that end or interrupt the training: the same on all ranks."""
        match effect:
            case events.StopTraining(reason, final):
                self.instruction = replace(self.instruction, stop=True, final=final, reason=reason)
                self.performer.log("info", f"training ends here: {reason}")
            case events.SaveNow(reason):
                self.instruction = replace(self.instruction, save=True, reason=reason)
                self.performer.log("info", f"saving at this step: {reason}")
            case events.SeekSyncer():
                if self._links.control is not None and self.job.revive is not None:
                    self.job.revive(self._links.control.address)
            case events.Abort(reason):
                raise PeerError(reason)
            case events.Fail(reason):
                raise UserError(reason)
            case _:
                assert_never(effect)

    # -- telling -------------------------------------------------------------------------------------------------------

    def _tell_wait(self) -> None:
        """Rank 0 says for whom the island waits: when that changes, and every PROGRESS_S."""
        control, reason = self._links.control, self.session.waiting_for()
        if reason and control is not None and control.trouble and self.session.membership is Membership.DIALING:
            reason += f" ({control.trouble})"
        told, at = self._last_told
        if reason and (reason != told or self._now - at > PROGRESS_S):
            where = "" if self.session.generation else f" at {self._address_text()}"
            self.performer.log("info", f"waiting for {reason}{where}")
            self._last_told = (reason, self._now)


def _merged_layout(specs: Sequence[bytes]) -> bytes:
    parts = [msgspec.msgpack.decode(part, type=list[TensorSpec]) for part in specs]
    return msgspec.msgpack.encode(make_layout(spec for part in parts for spec in part))
