"""Runs the world of a plan to its end: starts islands, lets the faults happen, checks every property.

A failure of anything names the plan, so that it can be replayed. First safety is checked, then progress: after the last
fault is over, the run must finish within `HEALED_LIMIT_S` of virtual time.
"""

from __future__ import annotations

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.story.dump import dump_of, lines
from swift_diloco.island.brain.stages import Membership
from swift_diloco.simulate.worlds.checkers import Rules, Violation, check
from swift_diloco.simulate.worlds.island_host import Life
from swift_diloco.simulate.worlds.island_parts import FRESH, IslandFacts, TrainerCheckpoint
from swift_diloco.simulate.worlds.plans import SYNCER_KINDS, Fault, FaultKind, IslandPlan, Plan, plan_json
from swift_diloco.simulate.worlds.syncer_host import SyncerHost
from swift_diloco.simulate.worlds.syncer_parts import MakeBrain, Surroundings, make_coordinator
from swift_diloco.simulate.worlds.truth import History
from swift_diloco.simulate.worlds.world import World

HEALED_LIMIT_S = 4000.0
"""Virtual time after the last fault by which a run must have finished: the longest patience of the plans (a lease, a
quorum clock of 900 s, the linger of 600 s) twice over, and the training itself."""

MOMENTS_SHOWN = 20
"""Last events of each brain that a failure shows."""

TENSOR_ELEMENTS = 6
"""Elements of each fragment's tensor: divisible by every number of ranks in a plan."""


class Run:
    """One world with its islands, its faults and its end."""

    def __init__(self, plan: Plan, *, make: MakeBrain = make_coordinator) -> None:
        self.plan = plan
        self.world = World(plan.seed, plan.delay_s, plan.transfer_s)
        self.history = History()
        around = Surroundings(make, lambda island, fragment: owners(plan.islands[island], fragment), self._crashed)
        self.syncer = SyncerHost(self.world, plan.settings, self.history, around)
        self.layout = layout_of(plan.settings.fragments)
        self.lives: dict[int, Life] = {}
        self._restarting: set[Life] = set()
        """Lives whose successor is on its way."""
        for island, each in enumerate(plan.islands):
            self.world.at(each.start_s, lambda island=island: self._start(island, FRESH))  # type: ignore[misc]
        for fault in plan.faults:
            self.world.at(fault.at_s, lambda fault=fault: self.strike(fault))  # type: ignore[misc]

    def _start(self, island: int, loaded: TrainerCheckpoint) -> None:
        boxes = tuple(boxes_of(self.plan.islands[island], rank, self.layout) for rank in range(self._ranks(island)))
        self.lives[island] = Life(IslandFacts(self.world, self.syncer, self.plan, self.layout, boxes), island, loaded)

    def _crashed(self) -> None:
        for _, life in sorted(self.lives.items()):
            if life.alive:
                life.syncer_died()

    def _ranks(self, island: int) -> int:
        return self.plan.islands[island].ranks

    # -- Faults -------------------------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Let one fault happen, if its victim is there."""
        if fault.kind in SYNCER_KINDS:
            self._strike_syncer(fault)
            return
        life = self.lives.get(fault.island)
        if life is None or not life.alive or self.syncer.exit is not None:
            return
        match fault.kind:
            case FaultKind.DAMAGE:
                life.armed.damage += 1
            case FaultKind.POISON:
                life.armed.poison += 1
            case FaultKind.INSTALL:
                life.armed.install += 1
                self._watch(life, fault.seconds)
            case _:
                self.world.note(fault.kind.value)
                self._break(life, fault)

    def _strike_syncer(self, fault: Fault) -> None:
        if self.syncer.down or self.syncer.exit is not None:
            return
        match fault.kind:
            case FaultKind.CRASH:
                self.syncer.crash(fault.effects, fault.seconds)
            case FaultKind.STOP:
                self.world.note(fault.kind.value)
                self.syncer.stop(fault.seconds)
            case FaultKind.DISK_FULL:
                self.syncer.disk.fill()
            case _:
                self.world.note(fault.kind.value)
                self.syncer.disk.slow_down(fault.seconds)

    def _break(self, life: Life, fault: Fault) -> None:
        """A fault that happens at once."""
        match fault.kind:
            case FaultKind.KILL | FaultKind.VANISH:
                life.kill(silently=fault.kind is FaultKind.VANISH)
                self._restart(life, fault.seconds)
            case FaultKind.CUT:
                life.cut(fault.seconds)
            case FaultKind.REPLAY:
                life.replay(fault.seconds)
            case FaultKind.CUT_RANK:
                life.cut_rank(fault.rank, fault.seconds)
            case FaultKind.PARTITION:
                self.world.part(fault.island, fault.seconds)
            case FaultKind.CLOG:
                self.world.clog(fault.island, fault.rank, fault.seconds)
            case FaultKind.STALL:
                life.armed.stalled_until = self.world.now + fault.seconds
            case _:
                raise AssertionError(f"{fault.kind} has its own way")

    def _restart(self, life: Life, seconds: float) -> None:
        if life not in self._restarting:
            self._restarting.add(life)
            self.world.after(seconds, lambda: self._start(life.island, life.checkpoint))

    def _watch(self, life: Life, seconds: float) -> None:
        """Restart an island once its install has failed."""
        if life.crashed_at_install:
            self._restart(life, seconds)
        elif life.alive:
            self.world.after(1.0, lambda: self._watch(life, seconds))

    # -- The end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Run to the end and check everything."""
        try:
            limit_s = self.plan.healed_s + HEALED_LIMIT_S
            ended = self.world.run(self._over, limit_s)
            rules = Rules(self.plan.settings.fragments, self.plan.settings.min_islands)
            if not (ended or self._nobody_is_left()):
                raise Violation(f"no end by {limit_s:g} s: {self.syncer.brain.waiting_for()}; {self._stages()}")
            check(self.history, rules)
            if ended:
                self.check_end()
        except Exception as error:
            error.add_note(f"seed {self.plan.seed}; the plan: {plan_json(self.plan)}")
            for story in (self.syncer.story, *(life.story for _, life in sorted(self.lives.items()))):
                error.add_note("\n".join(lines(dump_of(story, with_state=False), MOMENTS_SHOWN)))
            raise

    def _over(self) -> bool:
        return self.syncer.exit is not None

    def _nobody_is_left(self) -> bool:
        """The syncer died and waits for islands in vain: all have saved, or island 0 has and the state is lost.

        State is lost for good when the first checkpoint could not be written, which the syncer says loudly.
        """
        if "crash" not in self.world.fired:
            return False
        done = [island for island, life in self.lives.items() if life.finished]
        return len(done) == len(self.lives) or (0 in done and self.syncer.disk.newest is None)

    def _stages(self) -> str:
        return "; ".join(
            f"island {i} {'alive' if life.alive else 'dead'} at {life.step}: {life.session.stage.value}, "
            f"waiting for {life.session.waiting_for()} {life.failure}"
            for i, life in sorted(self.lives.items())
        )

    def check_end(self) -> None:
        """Everybody ended with the final cut, bit for bit."""
        ending = self.syncer.exit
        assert ending is not None
        untold = bool(ending.untold) and any(life.finished for life in self.lives.values())
        if ending.code != 0 or not ending.finished or (ending.untold and not untold):
            raise Violation(f"the syncer ended with {ending}; {self._stages()}")
        if untold:
            self.world.note("saved without telling")  # the link broke between the last save and the word of it
        values_of = dict(self.history.published)
        last = tuple(self.syncer.present[f] for f in range(self.plan.settings.fragments))
        for life in self.lives.values():
            known = life.session.generation in self.syncer.generations
            if not life.finished and (not life.alive or not known or life.session.membership is not Membership.MEMBER):
                self.world.note("missed the end")  # still under repair, or not back, when the others had ended
                continue
            # A crash may take a final cut back that is on no disk; an island that had it keeps it.
            mine = tuple(anchor.name for anchor in life.session.anchors if anchor.name is not None)
            cut = mine if self.history.resumed else last
            values, final = [local.value for local in life.locals], [values_of[name] for name in cut]
            if not life.finished or values != final:
                raise Violation(f"island {life.island} ends with {values}, not {final}; {self._stages()}")


def layout_of(fragments: int) -> Layout:
    """One tensor per fragment."""
    return make_layout(TensorSpec(f"w.{i}", (TENSOR_ELEMENTS,), "avg") for i in range(fragments))


def owners(island: IslandPlan, fragment: int) -> tuple[int, ...]:
    """Ranks that own a part of a fragment: all of them for even ones, one for the others."""
    return tuple(range(island.ranks)) if fragment % 2 == 0 else (fragment % island.ranks,)


def boxes_of(island: IslandPlan, rank: int, layout: Layout) -> tuple[Box, ...]:
    """What a rank owns."""
    boxes = []
    for fragment in range(len(layout.tensors)):
        ranks = owners(island, fragment)
        if rank in ranks:
            size = TENSOR_ELEMENTS // len(ranks)
            boxes.append(Box(fragment, (ranks.index(rank) * size,), (size,)))
    return tuple(boxes)


def run_plan(plan: Plan, make: MakeBrain = make_coordinator) -> Run:
    """Run a plan to its end; raises what it finds."""
    run = Run(plan, make=make)
    run.finish()
    return run
