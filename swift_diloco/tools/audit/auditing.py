"""Proves from a syncer's event tape that nothing was merged twice, and says what became of every pushed step and token.

Knows the tape and nothing else: no socket, no syncer, no trainer.

A unit of work is one local step of one life of an island. A life ends when the island comes back at an earlier step
than it had reached: what it does again is new work (*replayed*). The steps up to the one it came back at were done by
the life whose state it goes on from. A tape that was continued (`resumed`) takes back the commits after the step it
goes on from; a new run (`init`) begins anew.

Invariant: each admitted push has exactly one fate, and the fates' steps and tokens add up to what was pushed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import tape_lines as lines
from swift_diloco.tools.audit.report import AuditedPush, AuditReport, Breach, Fate, Sum

REASONS_MAX = 20
"""Different reasons for a drop that are listed apart."""

VIOLATIONS_MAX = 100
"""Violations that are listed; the rest are counted."""


@dataclass
class _Island:
    """The lives of one island: the step at which each began, and the highest step seen."""

    starts: list[int] = field(default_factory=list)
    reached: int = 0
    replayed: int = 0

    def joined(self, step: int) -> None:
        if not self.starts or step < self.reached:
            self.replayed += max(0, self.reached - step)
            self.starts.append(step)
            self.reached = step
        self.reached = max(self.reached, step)

    def seen(self, step: int) -> None:
        self.reached = max(self.reached, step)

    def owner(self, step: int, life: int) -> int:
        """The life that did a step which `life` counts among its own."""
        while life > 0 and step <= self.starts[life]:
            life -= 1
        return life


class Audit:
    """Feed it every line in order with `take`, then ask for the `report`."""

    def __init__(self) -> None:
        self._report = AuditReport()
        self._islands: dict[int, _Island] = defaultdict(_Island)
        self._pushes: dict[str, AuditedPush] = {}
        self._past: list[AuditedPush] = []
        """Pushes of earlier runs of the tape."""
        self._commits: list[tuple[int, lines.Commit]] = []
        """The commits that stand, with their line numbers."""
        self._before = 0
        """Outer steps before the first of them, which are on another tape."""

    def take(self, number: int, line: lines.TapeLine) -> None:
        """One line."""
        match line:
            case lines.Init():
                self._init(number)
            case lines.Resumed():
                self._resumed(number, line)
            case lines.Joined():
                self._islands[line.island].joined(line.step)
            case lines.Done():
                self._islands[line.island].seen(line.step)
            case lines.Pushed():
                self._pushed(number, line)
            case lines.Commit():
                self._commit(number, line)
            case lines.Carried():
                self._fate_of(line.push, Fate.CARRIED, number)
            case lines.Dropped():
                push = self._fate_of(line.push, Fate.DROPPED, number)
                if push is not None:
                    push.reason = _kind(line.reason)
            case lines.Refused():
                self._report.refused += line.push is not None

    def report(self) -> AuditReport:
        """What was found."""
        self._judge_run()
        report = self._report
        for push in [*self._past, *self._pushes.values()]:
            report.pushed.add(push)
            report.fates[push.fate].add(push)
            if push.fate is Fate.MERGED and push.late:
                report.late.add(push)
            if push.fate is Fate.DROPPED:
                reason = push.reason if push.reason in report.reasons or len(report.reasons) < REASONS_MAX else "other"
                report.reasons.setdefault(reason, Sum()).add(push)
        report.replayed += sum(island.replayed for island in self._islands.values())
        report.discarded += self._unpushed()
        return report

    @property
    def _step(self) -> int:
        """The outer step that the standing commits lead to."""
        return self._commits[-1][1].t if self._commits else self._before

    # -- Lines --------------------------------------------------------------------------------------------------------

    def _init(self, number: int) -> None:
        """A new run: what came before is of another one, its memory gone."""
        self._judge_run()
        self._report.discarded += self._unpushed()
        self._report.runs += 1
        for push in self._pushes.values():
            if push.fate is not Fate.MERGED:
                self._lose(push, number)
            self._past.append(push)
        self._pushes, self._commits, self._before = {}, [], 0

    def _resumed(self, number: int, line: lines.Resumed) -> None:
        """The syncer goes on from a checkpoint: later commits are void, and what only its memory held is gone."""
        t = line.t
        if not self._report.runs:
            self._report.runs, self._before = 1, t  # The run began on another tape.
        if t > self._step:
            self._violate(f"the syncer went on from outer step {t}, which the tape does not have", number)
        lost = [(at, each) for at, each in self._commits if each.t > t]
        self._commits = [(at, each) for at, each in self._commits if each.t <= t]
        self._report.lost_commits += len(lost)
        standing = {part.push for _, each in self._commits if not each.void for part in each.contributions}
        kept = set(line.carried)
        for push in self._pushes.values():
            if push.told.push in kept:
                push.fate = Fate.CARRIED
            elif push.told.push not in standing:
                self._lose(push, number)

    def _lose(self, push: AuditedPush, number: int) -> None:
        if push.fate in (Fate.OPEN, Fate.CARRIED, Fate.MERGED):
            push.fate, push.fate_line = Fate.ROLLED_BACK, number

    def _pushed(self, number: int, line: lines.Pushed) -> None:
        island = self._islands[line.island]
        if not island.starts:
            island.starts.append(0)
        island.seen(line.capture_step)
        known = self._pushes.get(line.push)
        if known is not None:
            self._violate(f"push {line.push} is admitted twice", known.line, number)
        self._pushes[line.push] = AuditedPush(number, line, life=len(island.starts) - 1)

    def _commit(self, number: int, line: lines.Commit) -> None:
        self._report.commits += not line.void
        self._report.void += line.void
        if not line.void:
            self._report.times.add(line)
        expected = self._step + 1
        if line.t != expected:
            self._violate(f"outer step {line.t} is committed where {expected} was due", number)
        self._commits.append((number, line))
        for part in line.contributions:
            if part.steps == 0 or line.void:
                continue
            push = self._pushes.get(part.push)
            if push is None:
                self._violate(f"outer step {line.t} merges push {part.push}, which was never admitted", number)
                continue
            told = push.told
            said = (part.island, part.steps, part.tokens, line.fragment)
            if said != (told.island, told.steps, told.tokens, told.fragment):
                self._violate(f"outer step {line.t} tells of push {part.push} otherwise", push.line, number)
            push.late = part.carried
            self._decide(push, Fate.MERGED, number)

    def _fate_of(self, name: str, fate: Fate, number: int) -> AuditedPush | None:
        push = self._pushes.get(name)
        if push is not None:  # An empty answer, dropped with its round, was never a push.
            self._decide(push, fate, number)
        return push

    def _decide(self, push: AuditedPush, fate: Fate, number: int) -> None:
        """A push has one fate; only a carried one may get another, and one in a commit that is merged but lost."""
        if push.fate not in (Fate.OPEN, Fate.CARRIED):
            who = f"push {push.told.push} of island {push.told.island}"
            self._violate(f"{who} is {fate.value}, but it was {push.fate.value} before", push.fate_line, number)
        push.fate, push.fate_line = fate, number

    # -- The whole run ------------------------------------------------------------------------------------------------

    def _judge_run(self) -> None:
        """No unit of work and no anchor is in a fragment twice, in the commits that stand."""
        units: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
        anchors: dict[tuple[int, int, tuple[int, str]], int] = {}
        for number, line in self._commits:
            if line.void:
                continue
            for part in line.contributions:
                push = self._pushes.get(part.push)
                if push is None or push.told.steps == 0:
                    continue
                fragment, island = push.told.fragment, push.told.island
                anchor = (fragment, island, push.base)
                if anchor in anchors:
                    what = f"two deltas of island {island} from one anchor (version {push.told.base_version})"
                    self._violate(f"{what} are in fragment {fragment}", anchors[anchor], number)
                anchors[anchor] = number
                for life, first, last in self._spans(push):
                    units[fragment, island, life].append((first, last, number))
        for (fragment, island, _), spans in units.items():
            self._find_overlap(fragment, island, sorted(spans))

    def _spans(self, push: AuditedPush) -> list[tuple[int, int, int]]:
        """(life, first, last) of the steps in a push; more than one when it goes on from an earlier life's."""
        island = self._islands[push.told.island]
        spans, first = [], push.first
        while first <= push.last:
            life = island.owner(first, push.life)
            last = min([push.last, *(start for start in island.starts[life + 1 : push.life + 1] if start >= first)])
            spans.append((life, first, last))
            first = last + 1
        return spans

    def _find_overlap(self, fragment: int, island: int, spans: Sequence[tuple[int, int, int]]) -> None:
        reached, at = 0, 0
        for first, last, number in spans:
            if first <= reached and at:
                steps = f"{first}" if first == min(reached, last) else f"{first} to {min(reached, last)}"
                self._violate(f"local step(s) {steps} of island {island} are in fragment {fragment} twice", at, number)
            if last > reached:
                reached, at = last, number

    def _unpushed(self) -> int:
        """Steps between two pushes of a fragment that no push has."""
        ends: dict[tuple[int, int, int], int] = {}
        gaps = 0
        for push in sorted(self._pushes.values(), key=lambda push: push.line):
            key = (push.told.island, push.life, push.told.fragment)
            begin = ends.get(key, self._islands[push.told.island].starts[push.life])
            gaps += max(0, push.first - 1 - begin)
            ends[key] = max(push.last, begin)
        return gaps

    def _violate(self, text: str, *lines: int) -> None:
        if len(self._report.violations) < VIOLATIONS_MAX:
            self._report.violations.append(Breach(text, lines))


def _kind(reason: str) -> str:
    """A reason without its numbers and ids, so that alike ones are counted together."""
    head = reason.partition(":")[2].strip() or reason
    return " ".join("N" if word.strip(",.;").isdigit() else word for word in head.split())


def audit(path: Path) -> AuditReport:
    """Audit one tape. Raises `UserError` when it cannot be read."""
    auditing, number, torn = Audit(), 0, 0
    for number, line in read_tape(path):
        if line is None:
            torn += 1
        else:
            auditing.take(number, line)
    if number and torn == number:
        raise UserError(f"{path} is no event tape of a syncer: no line of it is an event")
    report = auditing.report()
    report.lines, report.torn = number, torn
    return report
