"""Runs a scenario: starts the processes, strikes at the moments, starts again what was ended, until all is done.

Invariants: a fault strikes once, in the order listed; what ends without having been struck, or with a failure, fails
the run at once; nothing is alive when `run` returns.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swift_diloco.core.formats import tape_lines
from tests.e2e.chaos.processes import SIGNALS, IslandHost, News, SyncerHost
from tests.e2e.chaos.scenario import LATE, SYNCER, Fault, Scenario
from tests.forkserver.forkserver import ForkServer

LOOK_S = 0.003
"""Time between two looks at what the processes say: how late a fault may be for its moment."""

RUN_S = 120.0
"""A run that takes longer hangs; undisturbed it takes 3 to 5 s."""

SYNCER_LIVES_MAX = 6
"""A syncer that must be started more often does not serve what it should."""

LOG_LINES = 25


class RunFailed(AssertionError):
    """Something did not hold."""


@dataclass
class Struck:
    """A fault that fired."""

    fault: Fault
    at: float
    """Wall-clock time (s since 1970), as the tape and the islands have it."""
    step: int
    """The victim's step; 0 for the syncer."""
    back_at: float = 0.0
    """When it was started again, or went on."""


@dataclass
class World:
    """One run of a scenario."""

    scenario: Scenario
    folder: Path
    server: ForkServer
    syncer_restarts: bool = True
    """Whether the syncer writes checkpoints to be started from again."""
    restart_everything: bool = False
    """For comparison: each kill of one is answered by killing all and starting all from their checkpoints."""
    struck: list[Struck] = field(default_factory=list)
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.syncer = SyncerHost(self.scenario, self.folder, checkpoints=self.syncer_restarts)
        ids = range(len(self.scenario.ranks))
        self.islands = [IslandHost(self.scenario, island, self.folder, self.server) for island in ids]
        self._armed = list(self.scenario.faults)
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._condemned: set[int] = set()
        self._pending = False
        """The armed fault's moment has come; it strikes after its delay."""

    def run(self) -> None:
        """To the end. Raises `RunFailed`."""
        begin = time.monotonic()
        try:
            self.syncer.start()
            for island in self.islands:
                island.start(self.syncer.address)
            while not self._over():
                if time.monotonic() - begin > RUN_S:
                    raise RunFailed(f"not over after {RUN_S:g} s\n{self.story()}")
                self._turn()
        finally:
            for island in self.islands:
                if island.process is not None:
                    island.signal(signal.SIGKILL)
            self.syncer.kill()
        self._look()
        self.wall_s = time.monotonic() - begin

    def _over(self) -> bool:
        return self.syncer.done and all(island.done for island in self.islands)

    def _turn(self) -> None:
        news = self._look()
        if self._armed and not self._pending:
            fault = self._armed[0]
            if self._is_here(fault) or any(self._is_moment(fault, each) for each in news):
                self._pending = True
                self._after(fault.delay_s, lambda: self._strike(fault))
        now = time.monotonic()
        ready = [action for at, action in self._due if at <= now]
        self._due = [(at, action) for at, action in self._due if at > now]
        for action in ready:
            action()
        self._bury()
        time.sleep(LOOK_S)

    def _look(self) -> list[News]:
        return [news for host in self._hosts() for news in host.news()]

    def _hosts(self) -> list[IslandHost | SyncerHost]:
        return [self.syncer, *self.islands]

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + delay_s, action))

    def _is_moment(self, fault: Fault, news: News) -> bool:
        if fault.on == "fetch":
            return news.what == "commit" and self.islands[fault.victim].step >= fault.after
        return news.source == fault.victim and news.what == fault.on and news.number >= fault.after

    def _is_here(self, fault: Fault) -> bool:
        """Whether the victim has come to its end already and stays there, for others are slower."""
        return fault.on in LATE and self._lives(fault.victim) and self._host(fault.victim).last == fault.on

    # -- ends and beginnings -------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self._pending = False
        if not self._lives(fault.victim):
            return  # it stays armed and waits for its moment in the next life
        self._armed.pop(0)
        host = self._host(fault.victim)
        struck = Struck(fault, time.time(), 0 if isinstance(host, SyncerHost) else host.step)
        self.struck.append(struck)
        victims = [fault.victim]
        if self.restart_everything:
            victims = [SYNCER, *range(len(self.islands))]
        for victim in filter(self._lives, victims):
            self._host(victim).signal(SIGNALS[fault.how])
            if fault.how != "stop":
                self._condemned.add(victim)
        self._after(fault.away_s, lambda: self._bring_back(struck, victims))

    def _bring_back(self, struck: Struck, victims: list[int]) -> None:
        self._bury()
        if any(victim in self._condemned for victim in victims):
            self._after(LOOK_S, lambda: self._bring_back(struck, victims))  # it is still ending
            return
        struck.back_at = time.time()
        for victim in victims:
            host = self._host(victim)
            if struck.fault.how == "stop":
                if self._lives(victim):
                    host.signal(signal.SIGCONT)
            elif isinstance(host, SyncerHost):
                host.start()
            elif not host.done:
                host.start(self.syncer.address)

    def _bury(self) -> None:
        """See who has ended."""
        for island in self.islands:
            if (code := island.ended()) is not None:
                if island.number in self._condemned and code != 0:
                    self._condemned.remove(island.number)
                elif code == 0:
                    self._condemned.discard(island.number)
                    island.done = True
                else:
                    raise RunFailed(f"island {island.number} ended with code {code}\n{self.story()}")
        process = self.syncer.process
        if process is not None and process.poll() is not None:
            self.syncer.process = None
            if SYNCER in self._condemned:
                self._condemned.remove(SYNCER)
            elif process.returncode == 0 and self._nobody_needs_it():
                self.syncer.done = True
            elif process.returncode == 0 and self._was_final() and self.syncer.life < SYNCER_LIVES_MAX:
                # The others finished without an island that was away, as min_islands allows. The operator has the
                # syncer serve the final cut again, for that island.
                self.syncer.start()
            else:
                raise RunFailed(f"the syncer ended with code {process.returncode}\n{self.story()}")

    def _nobody_needs_it(self) -> bool:
        """It may end a moment before the last island does."""
        self._look()
        return all(island.done or any("digest" in row for row in island.said[-1:]) for island in self.islands)

    def _was_final(self) -> bool:
        return self.syncer_restarts and any(isinstance(line, tape_lines.Final) for line in self.syncer.tape)

    def _host(self, victim: int) -> IslandHost | SyncerHost:
        return self.syncer if victim == SYNCER else self.islands[victim]

    def _lives(self, victim: int) -> bool:
        if victim in self._condemned:
            return False
        return self._host(victim).process is not None

    def story(self) -> str:
        """What happened, for whoever must find out why."""
        parts = [f"struck: {', '.join(f'{s.fault} (step {s.step})' for s in self.struck) or 'nothing'}"]
        parts.append(f"still armed: {', '.join(map(str, self._armed)) or 'nothing'}")
        for host in self._hosts():
            name = "syncer" if isinstance(host, SyncerHost) else f"island {host.number} (life {host.life})"
            parts.append(f"-- {name}\n" + "\n".join(host.log().splitlines()[-LOG_LINES:]))
        return "\n".join(parts)
