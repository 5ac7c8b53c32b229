"""One island, as its trainer sees it: join, exchange at every step boundary, finish. The shell around `Session`.

Knows no trainer (that is `ModelPieces` and `RankGroup`) and takes no decision of its own. Every rank runs one
`Island`; all
public methods but `close` are collective. At a boundary rank 0 shares its clock and what its control link heard, all
ranks
feed that to the same session, vote on what is staged, and perform the same effects on their own pieces. Whatever fails
on
one rank is voted on and raises on all, so nobody is left alone in a collective.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from swift_diloco import events
from swift_diloco.buffers import HostBuffers
from swift_diloco.bulk import BulkLink, Pass
from swift_diloco.core.errors import DilocoError, PeerError, UserError
from swift_diloco.core.frames import decode_header
from swift_diloco.core.layout import Box, Layout, PieceMap, TensorSpec, make_layout
from swift_diloco.core.messages import Hello, Leave
from swift_diloco.core.settings import IslandSettings
from swift_diloco.link import ControlLink
from swift_diloco.model import ModelPieces, RankGroup
from swift_diloco.session import Membership, Session, Stage
from swift_diloco.values import AnchorStore, Arrival

POLL_S = 0.05
"""Longest sleep of a waiting island before its ranks look at their staged values again (rank 0 wakes on a message)."""

PARKED_POLL_S = 1.0
"""Longest time between two exchanges of parked ranks, so that no collective of ours is ever long."""

PROGRESS_S = 10.0
"""A wait that does not change is told again after this long."""

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


@dataclass(frozen=True)
class Verdict:
    """What the trainer must do after a boundary."""

    stop: bool = False
    reason: str = ""


class Mail(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 shares at a boundary: its clock (s) and what its control link heard (None: the link broke)."""

    now: float
    items: tuple[bytes | None, ...]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of something only rank 0 did."""

    value: bytes = b""
    error: str = ""
    by_user: bool = False


class Island:
    """See the module. The constructor opens nothing; `start` joins."""

    def __init__(self, settings: IslandSettings, model: ModelPieces, group: RankGroup, job: JobFacts) -> None:
        self.settings = settings
        self.model = model
        self.group = group
        self.job = job
        self.buffers = HostBuffers()
        self.session: Session
        self.layout: Layout
        self.pieces: PieceMap | None = None
        self.values: AnchorStore
        self.blocked_s = 0.0
        """Time spent in boundaries since the start (s)."""
        self._control: ControlLink | None = None
        self._bulk: BulkLink | None = None
        self._failure: BaseException | None = None
        self._verdict = Verdict()
        self._now = 0.0
        self._told = ("", 0.0)
        self._owners = 0
        self._boxes: tuple[Box, ...] = ()
        self._closed = False

    # -- the trainer's side --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join, then wait for the initial values and install them.

        Raises `UserError` (no syncer there, another model, an id in use) or `PeerError` (no initial values in time).
        """
        self._prepare()
        begun = self._share_clock()
        self._feed(events.Started())
        while not self.session.may_train(self._now) and not self._verdict.stop:
            self._boundary(wait_s=POLL_S)
            self._check_start_limits(self._now - begun)
            self._tell_wait()

    def step_ended(self, step: int, *, trained: bool, tokens: int) -> Verdict:
        """A local step boundary: counters, messages, installs, pushes, then the gate (parks while the run is paused).

        `trained`: the optimizer updated; `tokens`: supervised tokens of that update over the whole island.
        """
        entered = time.monotonic()
        self._verdict = Verdict()
        if self._control is not None:
            self._control.progressed(step)
        self._feed(events.StepEnded(step, trained, tokens))
        self._boundary()
        while not self.session.may_train(self._now) and not self._verdict.stop:
            self._tell_wait()
            self._boundary(wait_s=PARKED_POLL_S)
        self.blocked_s += time.monotonic() - entered
        return self._verdict

    def finish(self, step: int) -> None:
        """At the last step: answer what is still asked, wait for the final cut and install it. Raises `PeerError`."""
        if self._control is not None:
            self._control.progressed(step)
        self._feed(events.LastStepReached())
        begun = self._share_clock()
        while self.session.stage is not Stage.FINISHED:
            self._boundary(wait_s=POLL_S)
            self._tell_wait()
            waited = self._now - begun
            if waited > self.settings.finish_timeout_s:
                raise PeerError(
                    f"no final cut within finish_timeout_s={self.settings.finish_timeout_s:g}: "
                    f"waiting for {self.session.waiting_for()}; the model was not saved with the final values"
                )
        self._log("info", "the final cut is in the model")

    def saved(self) -> None:
        """The trainer's last save is durable: the syncer may forget this island."""
        self._feed(events.SaveFinished())

    def close(self, error: BaseException | None = None) -> None:
        """Leave (with the reason, if training failed) and close the links. Not collective, idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._control is not None and error is not None and hasattr(self, "session"):
            s = self.session
            self._control.send(Leave(s.syncer_session, s.generation, f"{type(error).__name__}: {error}"[:500]))
        for link in (self._bulk, self._control):
            if link is not None:
                link.close()
        self.group.close()

    # -- start ---------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Agree on the layout, the address and a life token; open the links."""
        specs = self.group.gather(msgspec.msgpack.encode(list(self.model.specs())))
        self.layout = msgspec.msgpack.decode(self._from_rank_0(lambda: _merged_layout(specs)), type=Layout)
        self._boxes = tuple(sorted(self.model.boxes(self.layout)))
        owns = self.group.gather(b"1" if self._boxes else b"")
        self._owners = sum(1 for flag in owns if flag)
        life = self._from_rank_0(lambda: secrets.token_hex(8).encode()).decode()
        address = self._from_rank_0(lambda: self.job.address().encode()).decode()
        self.session = Session(
            island=self.settings.island_id,
            life=life,
            wait_for_cut=self.settings.initial_cut_timeout_s > 0,
            heartbeats=self.settings.heartbeat_s > 0,
        )
        if self.group.rank == 0:
            self._control = ControlLink(
                address, heartbeat_s=self.settings.heartbeat_s, stall_s=self.settings.heartbeat_stall_s
            )
            self._control.progressed(self.job.step)
            self._control.start()
            logger.info("island %d: looking for the syncer at %s", self.settings.island_id, address)
        if self._boxes:
            self._bulk = BulkLink(address, self.group.rank, self.buffers)
            self._bulk.start()

    def _from_rank_0(self, make: Callable[[], bytes]) -> bytes:
        """What `make` gives on rank 0, on every rank; its error is everybody's."""
        answer = _Answer()
        if self.group.rank == 0:
            try:
                answer = _Answer(make())
            except DilocoError as error:
                answer = _Answer(error=str(error), by_user=isinstance(error, UserError))
        shared = msgspec.msgpack.decode(self.group.broadcast(msgspec.msgpack.encode(answer)), type=_Answer)
        if shared.error:
            raise (UserError if shared.by_user else PeerError)(shared.error)
        return shared.value

    def _check_start_limits(self, waited_s: float) -> None:
        s = self.settings
        if self.session.membership is Membership.DIALING and waited_s > s.connect_timeout_s:
            trouble = f" ({self._control.trouble})" if self._control is not None and self._control.trouble else ""
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
        return self._control.address if self._control is not None else "the syncer's address (see rank 0)"

    # -- boundaries ----------------------------------------------------------------------------------------------------

    def _share_clock(self) -> float:
        self._now = self._exchange(0.0)
        return self._now

    def _exchange(self, wait_s: float) -> float:
        """Rank 0's mail to everybody, and into the session. Returns rank 0's clock."""
        mail = Mail(0.0, ())
        if self._control is not None:
            if wait_s:
                self._control.wait(wait_s)
            mail = Mail(time.monotonic(), tuple(self._control.drain()))
        mail = msgspec.msgpack.decode(self.group.broadcast(msgspec.msgpack.encode(mail)), type=Mail)
        self._now = mail.now
        for item in mail.items:
            self._feed(events.LinkLost() if item is None else events.Heard(decode_header(item)))
        return mail.now

    def _boundary(self, wait_s: float = 0.0) -> None:
        self._exchange(wait_s)
        wanted = self.session.wanted()
        mine = [self._bulk is None or self._bulk.reserve(name) for name in wanted]
        *agreed, healthy = self.group.all_true([*mine, self._is_healthy()])
        if not healthy:
            raise self._failure or PeerError("another rank of this island failed; its log says why")
        for name, here, everywhere in zip(wanted, mine, agreed, strict=True):
            if here and not everywhere and self._bulk is not None:
                self._bulk.release(name)
        staged = tuple(name for name, everywhere in zip(wanted, agreed, strict=True) if everywhere)
        self._feed(events.BoundaryReached(staged))

    def _is_healthy(self) -> bool:
        """Whether this rank can go on; remembers why not, for the vote."""
        try:
            for link in (self._control, self._bulk):
                if link is not None:
                    link.check()
        except DilocoError as error:
            self._failure = self._failure or error
        return self._failure is None

    def _feed(self, event: events.Event) -> None:
        """One event into the session, its effects performed; a failure waits for the next vote, unless all ranks share
        it."""
        effects = self.session.handle(event, now=self._now)
        installs = [effect for effect in effects if isinstance(effect, events.Install)]
        try:
            if installs:
                self._install(installs)
            for effect in effects:
                self._perform(effect)
        except UserError:
            raise
        except Exception as error:
            logger.exception("rank %d: an effect of %s failed", self.group.rank, type(event).__name__)
            self._failure = self._failure or error

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Dial(nonce, with_layout):
                self._say_hello(nonce, with_layout)
            case events.Bind(plan):
                self.pieces = PieceMap(self.layout, plan, self._boxes)
                self.model.bind(self.pieces)
                self.values = AnchorStore(self.model, self.pieces, self.buffers)
                if self._bulk is not None:
                    self._bulk.bind(self.pieces)
            case events.Introduce(session, generation, token):
                self._introduce(Pass(session, generation, token))
            case events.Tell(message):
                if self._control is not None:
                    self._control.send(message)
            case events.ProvideInit(uploads):
                self._provide_init(uploads)
            case events.NameAnchor(name):
                if self._bulk is not None:
                    self._bulk.holds(name)
            case events.Capture(push, fragment):
                self._capture(push, fragment)
            case events.ForgetUpload(push, arrived):
                values = self._bulk.forget(push) if self._bulk is not None else None
                if values is not None and arrived:
                    self.values.free(values)
            case events.StopTraining(reason):
                self._verdict = Verdict(stop=True, reason=reason)
                self._log("info", f"training ends here: {reason}")
            case events.Fail(reason):
                raise UserError(reason)
            case events.Log(level, text):
                self._log(level, text)
            case events.Install():
                pass  # all of one boundary are written in one go, before the other effects

    def _say_hello(self, nonce: str, with_layout: bool) -> None:
        if self._control is None:
            return
        hello = Hello(
            island=self.settings.island_id,
            nonce=nonce,
            fingerprint=self.layout.fingerprint,
            host=socket.gethostname(),
            pid=os.getpid(),
            instance=self.job.instance,
            step=max(self.job.step, self.session.step),
            ranks=self._owners,
            layout=self.layout if with_layout else None,
            running=self.session.stage is not Stage.WAITING_FOR_CUT,
        )
        self._control.send(hello)

    def _introduce(self, granted: Pass) -> None:
        if self._bulk is not None:
            held = [anchor.name for anchor in self.session.anchors if anchor.name is not None]
            self._bulk.introduce(granted, self.session.contract, held)
        if self._control is not None:
            self._control.joined(granted.session, granted.generation)

    def _provide_init(self, uploads: tuple[str, ...]) -> None:
        if self._bulk is not None:
            self._bulk.provides_init()
        for fragment, upload in enumerate(uploads):
            values = self.values.anchor_here(fragment)
            if self._bulk is not None and values.size:
                self._bulk.offer(upload, values)

    def _capture(self, push: str, fragment: int) -> None:
        delta = self.values.capture(fragment, keep=self.session.contract.align == "carry")
        if self._bulk is not None and delta.size:
            self._bulk.offer(push, delta)

    def _install(self, installs: list[events.Install]) -> None:
        arrivals = []
        for install in installs:
            fragment = install.name.fragment
            if install.align is events.Align.ANCHOR or self._bulk is None:
                values = self.values.anchor_here(fragment)
            else:
                values = self._bulk.take(install.name)
            arrivals.append(Arrival(fragment, values, install.align, install.alpha))
        self.values.install(arrivals)
        self._log("debug", "installed " + ", ".join(f"{i.name.fragment}@{i.name.version}" for i in installs))

    # -- telling -------------------------------------------------------------------------------------------------------

    def _tell_wait(self) -> None:
        """Rank 0 says for whom the island waits: when that changes, and every PROGRESS_S."""
        reason = self.session.waiting_for()
        told, at = self._told
        if reason and (reason != told or self._now - at > PROGRESS_S):
            where = "" if self.session.generation else f" at {self._address_text()}"
            self._log("info", f"waiting for {reason}{where}")
            self._told = (reason, self._now)

    def _log(self, level: str, text: str) -> None:
        if self.group.rank == 0:
            logger.log(logging.getLevelName(level.upper()), "island %d: %s", self.settings.island_id, text)


def _merged_layout(specs: Sequence[bytes]) -> bytes:
    parts = [msgspec.msgpack.decode(part, type=list[TensorSpec]) for part in specs]
    return msgspec.msgpack.encode(make_layout(spec for part in parts for spec in part))
