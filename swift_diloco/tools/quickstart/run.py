"""The quickstart from begin to end: data and model, the islands, one island alone, evaluation, report.

It puts the other modules in order and holds no rule of its own but the time limits. Invariant: whatever happens, no
process of the run is alive when `run_quickstart` returns or raises.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from swift_diloco.core.files.run_folder import living_address
from swift_diloco.tools.quickstart.data import corpus, model
from swift_diloco.tools.quickstart.errors import QuickstartError
from swift_diloco.tools.quickstart.folder import QuickstartFolder, claim
from swift_diloco.tools.quickstart.jobs import commands
from swift_diloco.tools.quickstart.jobs.chaos import VICTIM, Chaos
from swift_diloco.tools.quickstart.jobs.progress import Display, Watch
from swift_diloco.tools.quickstart.jobs.supervisor import JobCommand, Supervisor
from swift_diloco.tools.quickstart.result import evaluate, losses, page, plots, report
from swift_diloco.tools.quickstart.result.figures import read_tape

HELD_OUT_EXAMPLES = 256
"""Enough that the loss is known to about a hundredth, few enough that evaluating takes a second."""

ADDRESS_LIMIT_S = 180.0
"""For island 0 to import the trainer and start the syncer: measured 15 s, on a busy machine 40."""

START_LIMIT_S = 240.0
STEP_LIMIT_S = 2.0
"""A phase may take START_LIMIT_S + steps x STEP_LIMIT_S: some ten times what it does take, so only a hang meets it."""

SYNCER_EXIT_LIMIT_S = 20.0
"""For the syncer to leave by itself after the islands have saved."""


@dataclass(frozen=True)
class QuickstartOptions:
    """What the user chose."""

    out: Path
    steps: int
    islands: int
    trainer: commands.TrainerName = "megatron"
    chaos: bool = False


@dataclass
class _Run:
    """What the phases share."""

    folder: QuickstartFolder
    recipe: commands.TrainingRecipe
    display: Display
    begin_s: float = field(default_factory=time.monotonic)
    started: dict[str, list[str]] = field(default_factory=dict)
    chaos: Chaos | None = None

    @property
    def limit_s(self) -> float:
        return START_LIMIT_S + self.recipe.steps * STEP_LIMIT_S

    def start(self, supervisor: Supervisor, command: JobCommand, name: str = "") -> None:
        self.started[name or command.name] = command.typed()
        supervisor.start(command)

    def unleash(self, supervisor: Supervisor, tick: Callable[[], None]) -> Callable[[], None]:
        """What a wait calls when the run is to be disturbed meanwhile."""
        if not self.recipe.chaos:
            return tick
        chaos = Chaos(self.folder, self.recipe, supervisor, lambda command, name: self.start(supervisor, command, name))
        self.chaos = chaos

        def tick_and_disturb() -> None:
            tick()
            chaos.tick()

        return tick_and_disturb

    def ticker(self, supervisor: Supervisor, jobs: Sequence[str], *, with_syncer: bool) -> Callable[[], None]:
        """What a wait calls on every look: bring the display up to date."""
        watch = Watch(self.folder, jobs, self.recipe.steps, supervisor.running)

        def tick() -> None:
            self.display.show(watch.snapshot(time.monotonic() - self.begin_s, with_syncer=with_syncer))

        return tick


@contextlib.contextmanager
def _supervised() -> Iterator[Supervisor]:
    """A supervisor whose processes are gone afterwards; a second Ctrl-C does not cut the clearing up short."""
    supervisor = Supervisor()
    try:
        yield supervisor
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            supervisor.stop_all()
        finally:
            signal.signal(signal.SIGINT, before)


def _train_islands(run: _Run) -> None:
    recipe, names = run.recipe, [commands.island_name(island) for island in range(run.recipe.islands)]
    with _supervised() as supervisor:
        tick = run.ticker(supervisor, names, with_syncer=True)
        run.start(supervisor, commands.island_command(run.folder, recipe, 0, "embedded"))
        supervisor.wait_until(
            lambda: living_address(run.folder.syncer) is not None,
            limit_s=ADDRESS_LIMIT_S,
            what="starting the embedded syncer",
            tick=tick,
        )
        address = living_address(run.folder.syncer)
        assert address is not None, "the wait ended because there is one"
        for island in range(1, recipe.islands):
            run.start(supervisor, commands.island_command(run.folder, recipe, island, address))
        supervisor.wait(limit_s=run.limit_s, what="training the islands", tick=run.unleash(supervisor, tick))
        left = supervisor.leftovers(limit_s=SYNCER_EXIT_LIMIT_S)
        if left:
            raise QuickstartError(
                f"the islands have ended, and {SYNCER_EXIT_LIMIT_S:.0f} s later these processes still run: {left}; "
                f"the syncer's log in {run.folder.syncer} says what it waits for"
            )


def _train_alone(run: _Run) -> None:
    with _supervised() as supervisor:
        tick = run.ticker(supervisor, [commands.ALONE], with_syncer=False)
        run.start(supervisor, commands.alone_command(run.folder, run.recipe))
        supervisor.wait(limit_s=run.limit_s, what="training one island alone", tick=tick)


def _points(folder: QuickstartFolder, job: str) -> list[losses.Point]:
    points = losses.read_points(folder.output(job))
    if not points:
        raise QuickstartError(f"{job} logged no training step in {folder.output(job)}; its log is {folder.log(job)}")
    return points


def _measure(run: _Run, before: float) -> report.Measured:
    pairs = corpus.read_jsonl(run.folder.held_out)
    exports = {
        island: evaluate.newest_export(run.folder.output(commands.island_name(island)))
        for island in range(run.recipe.islands)
    }
    alone = evaluate.newest_export(run.folder.output(commands.ALONE))
    return report.Measured(
        held_out_loss_before=before,
        held_out_loss_after=evaluate.held_out_loss(exports[0], pairs),
        alone_held_out_loss=evaluate.held_out_loss(alone, pairs),
        final_digests={island: evaluate.tensor_digest(export) for island, export in exports.items()},
    )


def _write_report(run: _Run, measured: report.Measured, data: corpus.Corpus, parameters: int) -> report.Report:
    tape = read_tape(run.folder.tape)
    curves = {i: _points(run.folder, commands.island_name(i)) for i in range(run.recipe.islands)}
    alone = _points(run.folder, commands.ALONE)
    seconds = time.monotonic() - run.begin_s
    facts = report.RunFacts(parameters, data.size, len(data.held_out), run.started, seconds)
    if run.chaos is not None:
        curves[VICTIM] = losses.joined(run.chaos.first_life, curves[VICTIM])
        facts = replace(facts, moments=run.chaos.happened(tape), chaos=run.chaos.checks(tape))
    result = report.build_report(curves, alone, tape, measured, facts)
    named = {f"island {island}": points for island, points in curves.items()} | {"alone": alone}
    report.write_json(run.folder.root / "report.json", result)
    page.write_page(run.folder.root / "report.html", result, plots.all_charts(named, tape, facts.moments))
    return result


def _prepare(folder: QuickstartFolder, islands: int) -> tuple[corpus.Corpus, int]:
    """Write data and model; returns the corpus and the number of parameters."""
    data = corpus.build_corpus(islands, HELD_OUT_EXAMPLES)
    corpus.write_jsonl(folder.held_out, data.held_out)
    for island, shard in enumerate(data.shards):
        corpus.write_jsonl(folder.shard(island), shard)
    texts = [text for shard in data.shards for example in shard for text in (example.question, example.answer)]
    return data, model.write_model(folder.model, texts, model.ModelSize())


def run_quickstart(options: QuickstartOptions, say: Callable[[str], None]) -> report.Report:
    """Do all of it; raises when something cannot be done, returns the judged report otherwise."""
    commands.trainer_program(options.trainer)  # a missing ms-swift is told before anything is written
    folder, lock = claim(options.out)
    with lock, Display() as display:
        recipe = commands.TrainingRecipe(options.steps, options.islands, options.trainer, chaos=options.chaos)
        run = _Run(folder, recipe, display)
        data, parameters = _prepare(folder, options.islands)
        say(f"data: {data.size} questions about the Python standard library, {len(data.held_out)} of them held out")
        before = evaluate.held_out_loss(folder.model, corpus.read_jsonl(folder.held_out))
        say(f"model: Qwen3 with {parameters:,} random parameters, held-out loss {before:.4f}")
        disturbed = "; one island and then the syncer are killed and started again" if options.chaos else ""
        say(f"training {options.islands} islands and a syncer, {options.steps} local steps each{disturbed}")
        _train_islands(run)
        say(f"training one island alone, {options.steps} steps")
        _train_alone(run)
        say("evaluating")
        return _write_report(run, _measure(run, before), data, parameters)
