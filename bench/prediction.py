"""Predicted against live decode speed, out of sample: pairs x engines x draft lengths.

A *cell* is a pair on an engine. It has turns, each of: a pass of all timings, and a live round of
every configuration, of no draft one before and one after the others: it is the shortest, and what
others do to the memory of a shared machine shows in it the most (one alone where prompts are long:
replies take most of a minute there, readings many of them, and looks tell its pace). After the last
turn comes one more pass, so that a cell of one turn has two, with the live runs between them.
Overheads are fitted on the requests of no draft and of one draft, on one half of the prompts;
predictions and live runs are compared on the other half. A machine changes its speed meanwhile
(shared ones do, by a quarter from minute to minute, and by half for seconds): timings and live
requests are taken at one pace (:mod:`bench.pace`). How far live runs scatter there, and by the
clock, is told beside the error, as is the error of the end-to-end speed, which long prompts decide.
Both sides are of every request's median over the turns, as a record's live figures are over
repeats: the mean of one beside the median of the other is off where a few turns are far slower, for
drafts by some per cent more than for no draft. What is the same work in several runs, the reading
of a prompt, counts at its median over these. Where servers with a draft wrote another text than the
trace has, drafts are replayed on theirs, too (:mod:`bench.written`), and what that would be off by
is told beside the error.

A cell of long prompts takes longer than a machine may be had: where ``COOK_BENCH_KEPT`` names a
folder, what ran stays there, a cell that was ended goes on, and ``COOK_BENCH_TURNS`` adds turns.
``COOK_BENCH_DRAFTS`` names drafts (``first-2,first-8``) to run alone, with no draft and what
overheads are fitted on, all on one machine: 15 readings of 16,384 tokens take two hours on one, and
more than three on another. ``COOK_BENCH_PASSES`` names how often timings are taken, where a machine
keeps its speed and is not had for as long as the passes take: with one, all of them are taken
before the first live run.

Where ``COOK_BENCH_CELLS`` names a file, every cell appends what it found; of all that is in it,

    python -m bench.prediction CELLS.jsonl

makes one table, and exits 1 where a bound does not hold over all cells. All cells take longer than
a day of a machine that is had by the hour: ``bench/results/prediction.jsonl`` has the last run of
each, with its day, commit and machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory

from bench.demo_score import Q8_0_TARGET, UNPACKED_TARGET, study_layout
from bench.pace import Pace, reference
from bench.proportions import DENSE, SPARSE, TARGET, pair_folder, proportions_layout, write_recipe
from bench.proportions import DRAFTS as FIRST_LAYERS
from bench.random_model import Shape
from bench.study import Study, empty_executor, engine_names
from bench.written import recorded, rewrite, written_by
from cook.build.forecast import Forecast, Forecaster
from cook.build.layout import Configuration, ForecastPlan, Layout
from cook.graph.execute import Executor
from cook.prompts.prompt_set import Half, Prompt
from cook.provenance import machine
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import figures, merge_repeats
from cook.scoring.racing import student_quantile
from cook.steps.live import LiveStep
from cook.steps.trace import given_trace

DRAFTS = ("Q8_0", "Q4_K_M", "Q2_K")
FITTED_ON = "Q4_K_M"
LENGTHS = (2, 4, 8)
MOST_MEDIAN, MOST_ERROR, MOST_LOSS = 0.05, 0.10, 0.02
MOST_WHOLE = 0.05
"""Of the worst end-to-end speed, in :data:`LONG` cells."""
LONG_TOKENS = 4096
LONG = ("prediction-4096-ik", "prediction-16384-ik")
"""ik counts a draft's reading of the prompt as decoding, so there both speeds depend on it."""


@dataclass(frozen=True)
class Compared:
    """A configuration, in decoded tokens a second; ``live`` of each turn, ``typical`` of all.

    ``whole``: predicted and typical tokens a second with the reading of the prompts. All at one
    pace of the machine but ``by_clock``, which are those of ``live``. ``of_written``: what
    is predicted where drafts are replayed on the text that servers with a draft wrote; None without
    one, and where that is the trace's.
    """

    name: str
    draft: str | None
    n_max: int
    predicted: float
    typical: float
    live: tuple[float, ...]
    whole: tuple[float, float]
    by_clock: tuple[float, ...]
    of_written: float | None = None

    @property
    def error(self) -> float:
        """predicted / typical - 1."""
        return self.predicted / self.typical - 1

    @property
    def written_error(self) -> float | None:
        """The same on the text that was written, where that is not the trace's."""
        return self.of_written / self.typical - 1 if self.of_written is not None else None

    @property
    def whole_error(self) -> float:
        """The same end to end."""
        predicted, typical = self.whole
        return predicted / typical - 1

    @property
    def scatter(self) -> float | None:
        """Spread of one live run, as a share; None where there was one only."""
        return _spread(self.live)

    @property
    def clock_scatter(self) -> float | None:
        """The same by the clock."""
        return _spread(self.by_clock)


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) / mean(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Pair:
    """A target with its drafts and prompts, ``laid`` out for an engine by its name.

    ``fitted``: the draft whose live requests, at its shortest and longest, overheads are fitted on,
    beside those of no draft. ``apart``: a server for every prompt, so that a cell of prompts that
    take long to read goes on between them. ``depth``: of the batches that tell the machine's pace.
    """

    title: str
    laid: Callable[[str], AbstractContextManager[Layout]]
    fitted: str
    turns: int
    apart: bool = False
    depth: int = 32


@contextmanager
def _demo(target: str, engine: str) -> Iterator[Layout]:
    yield study_layout(
        "replay",
        limit=16,
        tokens=128,
        n_max=LENGTHS,
        quants=DRAFTS,
        target=target,
        engine=engine,
    )


@contextmanager
def of_first_layers(
    shape: Shape,
    tokens: int,
    prompts: int,
    max_tokens: int,
    engine: str,
) -> Iterator[Layout]:
    """A pair of random weights on prompts of ``tokens`` tokens.

    Mainline's flash attention on processors adds up a batch of one token otherwise than wider ones
    (ggml-cpu/ops.cpp, from 512 tokens on, in F16), so that a server with a draft wrote another text
    than one without after 37 and 44 tokens of 256. A cell of one long prompt would compare two
    texts by chance (159 live steps of first-2 for 174 of the trace's): its long prompts go without
    flash attention there. After 16,384 tokens the same happens without it, and the trace of long
    prompts is written in batches as wide as the narrowest that verify.
    """
    threads = len(os.sched_getaffinity(0))
    alike = engine != "bundled" or tokens < LONG_TOKENS
    with pair_folder(shape) as folder:
        recipe = write_recipe(
            folder,
            tokens,
            n_max=LENGTHS,
            shape=shape,
            prompts=prompts,
            max_tokens=max_tokens,
            threads=threads,
            flash_attention=None if alike else False,
            batch_width=1 if alike else 2,
        )
        yield proportions_layout(recipe, engine)


def _in_proportion(
    tokens: int, prompts: int, max_tokens: int, turns: int, shape: Shape = TARGET
) -> Pair:
    """The pair of real proportions on prompts of ``tokens`` tokens.

    What a long prompt costs is its reading, once a configuration and turn: so there are few of
    them, with longer replies. Overheads are fitted on prompts of the same length: what a step takes
    beyond the timings differs with the depth, and a look at one depth tells no pace at another.
    """
    laid = partial(of_first_layers, shape, tokens, prompts, max_tokens)
    experts = f", {shape.experts} experts" if shape.experts else ""
    title = f"real proportions{experts}, {tokens} tokens"
    return Pair(title, laid, FIRST_LAYERS[1], turns, apart=tokens >= LONG_TOKENS, depth=tokens)


PAIRS = {
    "prediction": Pair(f"demo, {UNPACKED_TARGET}", partial(_demo, UNPACKED_TARGET), FITTED_ON, 3),
    # Fits in a large cache.
    "prediction-in-cache": Pair(f"demo, {Q8_0_TARGET}", partial(_demo, Q8_0_TARGET), FITTED_ON, 3),
    # Of another architecture than the demo's.
    "prediction-dense": Pair(
        "dense F16, 256 tokens",
        partial(of_first_layers, DENSE, 256, 12, 96),
        FIRST_LAYERS[1],
        4,
        depth=256,
    ),
    "prediction-256": _in_proportion(256, prompts=8, max_tokens=96, turns=3),
    "prediction-sparse": _in_proportion(256, prompts=8, max_tokens=96, turns=3, shape=SPARSE),
    "prediction-4096": _in_proportion(4096, prompts=2, max_tokens=256, turns=3),
    "prediction-16384": _in_proportion(16_384, prompts=2, max_tokens=256, turns=1),
}
"""By the name of the study. Of a pair on one engine it is this and the engine's."""


def prediction(pair: str, engines: Sequence[str] | None = None) -> Study:
    """The cells of ``pair`` on ``engines``, or on all at hand."""
    cells = [_cell(pair, engine) for engine in engines or engine_names()]
    return Study(
        tuple(line for study in cells for line in study.lines),
        all(study.within for study in cells),
    )


def _cell(name: str, engine: str) -> Study:
    pair, started = PAIRS[name], time.monotonic()
    with pair.laid(engine) as layout:
        kept = os.environ.get("COOK_BENCH_KEPT")
        folder = Path(kept) / f"{name}-{engine}" if kept else None
        continued = folder is not None and folder.exists()
        turns = int(os.environ.get("COOK_BENCH_TURNS", pair.turns))
        asked = os.environ.get("COOK_BENCH_DRAFTS")
        drafts = tuple(asked.split(",")) if asked else None
        passes = int(os.environ.get("COOK_BENCH_PASSES", turns + 1))
        found = compared(
            layout,
            pair.fitted,
            turns,
            passes,
            drafts=drafts,
            apart=pair.apart,
            depth=pair.depth,
            kept=folder,
        )
    title = f"{pair.title} x {engine}"
    minutes = (time.monotonic() - started) / 60
    if to := os.environ.get("COOK_BENCH_CELLS"):
        cell = Cell(
            f"{name}-{engine}",
            title,
            turns,
            passes,
            None if continued else minutes,
            tuple(found),
            day=date.today().isoformat(),
            commit=commit_here(),
            machine=f"{machine().cores} x {machine().processor}",
        )
        with Path(to).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(cell)) + "\n")
    study = told(title, found, turns, whole=f"{name}-{engine}" in LONG)
    more = " more" if continued else ""
    return replace(study, lines=(*study.lines, f"{title}: {minutes:.1f} minutes{more}"))


Asked = Mapping[Half, Mapping[str, Sequence[Sequence[LiveStep]]]]
"""Live rounds by the half of the prompts and the configuration's name, each a server or several."""


def compared(
    layout: Layout,
    fitted: str,
    turns: int,
    passes: int,
    *,
    drafts: Collection[str] | None = None,
    apart: bool = False,
    depth: int = Pair.depth,
    kept: Path | None = None,
) -> list[Compared]:
    """Every configuration of ``layout``, or of no draft and its ``drafts``, on the prompts that
    nothing was fitted on. ``passes``: of the timings, the first before the first turn and one more
    after each.

    ``fitted``, ``apart`` and ``depth``: as :class:`Pair` has them; ``kept``: where what ran stays,
    and is taken up again. Fitted is on the prompts that builds choose on, judged on those that they
    report on.
    """
    assert layout.forecast is not None, "asked for"
    assert layout.baseline is not None, "asked for"
    assert layout.prompts is not None, "asked for"
    prompts = layout.prompts.prompts
    given = {d.draft.name for d in layout.forecast.drafts}
    judging = given if drafts is None else set(drafts)
    if unknown := judging - given:
        raise ValueError(f"no drafts of this pair: {', '.join(sorted(unknown))}")
    running_drafts = layout.forecast.without(given - judging - {fitted})
    assert running_drafts is not None, "fitted stays"
    plan = with_passes(running_drafts, passes)
    mine = [c for c in layout.grid if c.draft is not None and c.draft.name == fitted]
    # Two lengths far apart tell a step's overhead from a drafted token's.
    fitting = [layout.baseline, mine[0], mine[-1]]
    judged_on = [c for c in layout.grid if c.draft is not None and c.draft.name in judging]
    every = [layout.baseline, *judged_on]
    asked: Asked = {
        "pick": {c.name: _asked(c, prompts, "pick", turns, apart) for c in fitting},
        "report": {c.name: _asked(c, prompts, "report", turns, apart) for c in every},
    }
    rounds = [steps for half in asked.values() for rounds in half.values() for steps in rounds]
    running = [step for steps in rounds for step in steps]
    place = {prompt.id: number for number, prompt in enumerate(prompts)}
    # All configurations on a prompt before any on the next.
    running.sort(key=lambda step: (step.repeat, place[step.prompts[0].id]))
    judged = {p.id for p in prompts if p.half == "report"}
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    looks = kept / "pace.json" if kept is not None else None
    with empty_executor(kept=kept) as executor, reference(layout, depth, looks) as pace:
        pace.take(executor)
        executor.run([plan.trace, *(r for d in plan.drafts for r in d.replays)])
        for turn in range(turns):
            pace.run(executor, plan.timing(turn))
            pace.run(executor, [step for step in running if step.repeat // 2 == 1 + turn])
        pace.run(executor, plan.timing(turns))
        _require_all(executor)
        by_trace = Forecaster(plan, executor.outcomes)
        found = _judged(by_trace, pace, asked, fitting, every, judged)
        by_written = _on_written(by_trace, executor, running)
        if by_written is None:
            return found
        return [
            replace(one, of_written=other.predicted) if one.draft is not None else one
            for one, other in zip(
                found, _judged(by_written, pace, asked, fitting, every, judged), strict=True
            )
        ]


def _require_all(executor: Executor) -> None:
    for failure in executor.outcomes.failures.values():
        raise failure.error


def _on_written(
    forecaster: Forecaster, executor: Executor, live: Sequence[LiveStep]
) -> Forecaster | None:
    """``forecaster`` on the text that the ``live`` servers with a draft wrote, drafts replayed on
    it; None where it is the trace's."""
    outcomes = [executor.outcomes.result(step) for step in live if step.settings is not None]
    texts = written_by(run for outcome in outcomes if outcome is not None for run in outcome.runs)
    if texts.items() <= recorded(forecaster.trace).items():
        return None
    with TemporaryDirectory(prefix="cook-bench-") as folder:
        path = Path(folder) / "written.trace"
        rewrite(forecaster.trace, texts, path)
        plan = forecaster.plan.on(given_trace(path))
        executor.run([plan.trace, *(r for d in plan.drafts for r in d.replays)])
    _require_all(executor)
    return Forecaster(plan, executor.outcomes)


def _judged(
    forecaster: Forecaster,
    pace: Pace,
    asked: Asked,
    fitting: Sequence[Configuration],
    every: Sequence[Configuration],
    judged: Collection[str],
) -> list[Compared]:
    """``every`` configuration, fitted on what ``asked`` has of the ``fitting`` ones, of which no
    draft is the first, on the half that builds choose on."""
    plan = forecaster.plan

    shares = decoded_alone(forecaster, judged)

    def requests(step: LiveStep, alone: float | None) -> tuple[PromptRun, ...]:
        outcome = forecaster.outcomes.result(step)
        assert outcome is not None, "nothing failed"
        return pace.runs(step, outcome, alone)

    def lived(
        half: Half, some: Sequence[Configuration], *, clock: bool = False
    ) -> dict[str, list[tuple[PromptRun, ...]]]:
        """Requests of each configuration, a round each."""
        found = {}
        for c in some:
            alone = None if clock else shares[c.name]
            found[c.name] = [
                forecaster.counted_alike(c.key, [r for s in steps for r in requests(s, alone)])
                for steps in asked[half][c.name]
            ]
        return found

    typical = {
        name: {run.id: run for run in merge_repeats(rounds)}
        for name, rounds in lived("pick", fitting).items()
    }
    bare, *drafting = fitting
    overheads = forecaster.fitted(
        typical[bare.name],
        [(c.settings, typical[c.name]) for c in drafting if c.settings],
        next(d for d in plan.drafts if d.draft == drafting[0].draft),
    )
    predicted = {f.name: f for f in forecaster.forecasts(overheads, judged)}
    drafts = {c.name: c.draft.name if c.draft is not None else None for c in every}
    live, by_clock = lived("report", every), lived("report", every, clock=True)
    read = read_alike(live, drafts)
    merged = {c.name: merge_repeats(read[c.name]) for c in every}
    return [
        Compared(
            name=c.name,
            draft=c.draft.name if c.draft is not None else None,
            n_max=c.settings.n_max if c.settings else 0,
            predicted=predicted[c.name].decode_speed,
            typical=_speeds(merged[c.name])[0],
            live=tuple(_speeds(runs)[0] for runs in live[c.name]),
            whole=(predicted[c.name].end_to_end_speed, _speeds(merged[c.name])[1]),
            by_clock=tuple(_speeds(runs)[0] for runs in by_clock[c.name]),
        )
        for c in every
    ]


def decoded_alone(forecaster: Forecaster, judged: Collection[str]) -> dict[str, float]:
    """Share of every configuration's decoding that is of one token at a time: all of it without a
    draft, with one the drafting."""

    def share(forecast: Forecast) -> float:
        cost = forecast.priced.breakdown
        return cost.draft_s / cost.total_s if forecast.key.draft else 1.0

    return {f.name: share(f) for f in forecaster.forecasts(only=judged)}


Live = Mapping[str, Sequence[Sequence[PromptRun]]]
"""Requests of each configuration, a round each."""


def read_alike(live: Live, drafts: Mapping[str, str | None]) -> dict[str, list[list[PromptRun]]]:
    """``live`` with what is the same work in several runs at its median over them.

    The target's reading of a prompt is the same with every draft, a draft's at every length
    (``drafts``: that of each configuration). A run's own scatters by a tenth on a shared machine,
    and is nine tenths of a request of 16,384 tokens. What an engine does not tell apart from the
    target's reading stays with the draft.
    """

    def of_target(name: str, run: PromptRun) -> tuple[str, str | None]:
        return run.id, drafts[name] if run.draft_prompt_ms is None else None

    target: dict[tuple[str, str | None], list[float]] = {}
    draft: dict[tuple[str, str | None], list[float]] = {}
    for name, rounds in live.items():
        for run in (run for runs in rounds for run in runs):
            late_ms = run.draft_prompt_ms or 0.0
            target.setdefault(of_target(name, run), []).append(
                run.wall_ms - run.predicted_ms - late_ms
            )
            draft.setdefault((run.id, drafts[name]), []).append(late_ms)

    def alike(name: str, run: PromptRun) -> PromptRun:
        reading_ms = median(target[of_target(name, run)]) + median(draft[run.id, drafts[name]])
        return replace(run, wall_ms=run.predicted_ms + reading_ms)

    return {
        name: [[alike(name, run) for run in runs] for runs in rounds]
        for name, rounds in live.items()
    }


def _asked(
    one: Configuration, prompts: Sequence[Prompt], half: Half, turns: int, apart: bool
) -> list[list[LiveStep]]:
    """Live rounds of a configuration on one ``half`` of the prompts, a turn's as repeats 2 and 3,
    the next one's as 4 and 5: no draft has both, unless ``apart``, all others the first."""
    share = tuple(p for p in prompts if p.half == half)
    shares = [(prompt,) for prompt in share] if apart else [share]
    times = (0, 1) if one.settings is None and not apart else (0,)
    return [
        [replace(one.rounds[0], prompts=some, repeat=2 * (1 + turn) + time) for some in shares]
        for turn in range(turns)
        for time in times
    ]


def with_passes(plan: ForecastPlan, passes: int) -> ForecastPlan:
    return replace(
        plan,
        verify=plan.verify[0].passes(passes),
        plain=plan.plain[0].passes(passes),
        drafts=tuple(replace(d, curves=d.curves[0].passes(passes)) for d in plan.drafts),
    )


def _speeds(runs: Sequence[PromptRun]) -> tuple[float, float]:
    """Decoded tokens a second, and the same with the reading of the prompts."""
    found = figures(runs)
    assert found.decode_speed is not None, "timed"
    assert found.end_to_end_speed is not None, "timed"
    return found.decode_speed, found.end_to_end_speed


def _half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean over the turns; infinite for a single one."""
    if len(values) < 2:
        return float("inf")
    return float(student_quantile(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def told(what: str, found: Sequence[Compared], turns: int, *, whole: bool = False) -> Study:
    """Every configuration, then errors by draft length, then what the predicted best costs.

    ``whole``: end-to-end speeds have a bound, too.
    """
    lines = [f"{what}: predicted / live decode t/s, {turns} live repeats in turn:"]
    for one in found:
        scatter = f"live scatter {one.scatter:.1%}" if one.scatter is not None else "one live run"
        lines.append(
            f"  {one.name:20} {one.predicted:8.2f} / {one.typical:8.2f}, "
            f"{one.error:+.1%}; {scatter}; end to end {one.whole[0]:.2f} / {one.whole[1]:.2f}, "
            f"{one.whole_error:+.1%}{_told_written(one)}"
        )
    lines.append(f"{what}: |predicted / live - 1| on prompts that nothing was fitted on:")
    groups = {"no draft": [c for c in found if c.draft is None]}
    for n_max in sorted({c.n_max for c in found if c.draft is not None}):
        groups[f"drafts n_max={n_max}"] = [c for c in found if c.draft and c.n_max == n_max]
    for name, group in groups.items():
        errors = [abs(c.error) for c in group]
        scatters = [c.scatter for c in group if c.scatter is not None]
        clocked = [c.clock_scatter for c in group if c.clock_scatter is not None]
        beside = f"{median(scatters):.1%}" if scatters else "unknown"
        aside = f" ({median(clocked):.1%} by the clock)" if clocked else ""
        lines.append(
            f"  {name:20} median {median(errors):.1%}, worst {max(errors):.1%} "
            f"of {len(errors)}; scatter of a live run {beside}{aside}"
        )
    loss, about = _loss(found)
    every = [abs(c.error) for c in found]
    lines += about
    lines.append(
        f"{what}: median error {median(every):.1%} (at most {MOST_MEDIAN:.0%}), worst "
        f"{max(every):.1%} (at most {MOST_ERROR:.0%}); the best length surely costs {loss:.1%} "
        f"(at most {MOST_LOSS:.0%})"
    )
    within = median(every) <= MOST_MEDIAN and max(every) <= MOST_ERROR and loss <= MOST_LOSS
    if whole:
        lines.append(f"{what}: end to end {_told_whole(_worst_whole(found))}")
        within = within and _worst_whole(found) <= MOST_WHOLE
    return Study(tuple(lines), within)


def _told_written(one: Compared) -> str:
    if one.written_error is None:
        return ""
    return f"; on what servers wrote, not the trace's text, {one.written_error:+.1%}"


def _worst_whole(found: Sequence[Compared]) -> float:
    return max(abs(c.whole_error) for c in found)


def _told_whole(worst: float) -> str:
    return f"worst {worst:.1%} (at most {MOST_WHOLE:.0%})"


def _loss(found: Sequence[Compared]) -> tuple[float, list[str]]:
    """What the predicted best length of each draft surely loses on its live best, at most."""
    loss, lines = 0.0, []
    for draft in dict.fromkeys(c.draft for c in found if c.draft is not None):
        mine = [c for c in found if c.draft == draft]
        chosen = max(mine, key=lambda c: c.predicted)
        best = max(mine, key=lambda c: c.typical)
        turns = [c / b - 1 for c, b in zip(chosen.live, best.live, strict=True)]
        half = _half_width(turns)
        loss = max(loss, -mean(turns) - half)
        lines.append(
            f"  {draft}: predicted best n_max={chosen.n_max}, live best n_max={best.n_max}, "
            f"{-mean(turns):.1%} ± {half:.1%} lost"
        )
    return max(0.0, loss), lines


@dataclass(frozen=True)
class Cell:
    """What a pair on an engine came to; a line of the file that ``COOK_BENCH_CELLS`` names.

    ``minutes``: None where it went on from what an earlier run had ``kept``; ``commit``: of the
    code that ended it; ``passes``: of the timings.
    """

    name: str
    title: str
    turns: int
    passes: int
    minutes: float | None
    found: tuple[Compared, ...]
    day: str
    commit: str
    machine: str

    @property
    def drafts(self) -> tuple[str, ...]:
        """Names, in the order of ``found``."""
        return tuple(dict.fromkeys(c.draft for c in self.found if c.draft is not None))


def commit_here() -> str:
    """The commit of the code that runs, with a ``+`` where it was changed since."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def read_cells(path: Path) -> list[Cell]:
    """The cells in ``path``, each as it was last run: of one whose drafts were run in several goes,
    a cell a go, each with those that no later go has."""
    cells: list[Cell] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found = tuple(
            Compared(
                **{**one, **{name: tuple(one[name]) for name in ("live", "whole", "by_clock")}}
            )
            for one in row.pop("found")
        )
        new = Cell(**row, found=found)
        places = [place for place, cell in enumerate(cells) if cell.name == new.name]
        left = [
            cell for place in places if (cell := _without(cells[place], new.drafts)) is not None
        ]
        first = places[0] if places else len(cells)
        cells = [cell for cell in cells if cell.name != new.name]
        cells[first:first] = [*left, new]
    return cells


def _without(cell: Cell, drafts: Collection[str]) -> Cell | None:
    found = tuple(c for c in cell.found if c.draft is None or c.draft not in drafts)
    return replace(cell, found=found) if any(c.draft is not None for c in found) else None


def _told_drafts(cell: Cell, cells: Sequence[Cell]) -> str:
    """Which of its drafts, where another cell has the others."""
    parts = sum(other.name == cell.name for other in cells)
    return f", {', '.join(cell.drafts)}" if parts > 1 else ""


def table(cells: Sequence[Cell]) -> Study:
    """A row a cell, and the bounds over all of them."""
    lines = [
        f"{'cell':26} {'median':>7} {'worst':>7} {'no draft':>9} {'scatter':>8} {'by clock':>9} "
        f"{'end to end':>11} "
        f"{'turns':>6} {'passes':>7} {'minutes':>8}  day, commit"
    ]
    every: list[float] = []
    whole: list[float] = []
    for cell in cells:
        errors = [abs(c.error) for c in cell.found]
        every += errors
        worst_whole = _worst_whole(cell.found)
        if cell.name in LONG:
            whole.append(worst_whole)
        bare = next(c.error for c in cell.found if c.draft is None)
        scatters = [c.scatter for c in cell.found if c.scatter is not None]
        scatter = f"{median(scatters):.1%}" if scatters else "-"
        clocked = [c.clock_scatter for c in cell.found if c.clock_scatter is not None]
        by_clock = f"{median(clocked):.1%}" if clocked else "-"
        minutes = f"{cell.minutes:.1f}" if cell.minutes is not None else "-"
        lines.append(
            f"{cell.name:26} {median(errors):7.1%} {max(errors):7.1%} {bare:+9.1%} {scatter:>8} "
            f"{by_clock:>9} {worst_whole:11.1%} {cell.turns:6} {cell.passes:7} {minutes:>8}  "
            f"{cell.day} {cell.commit}{_told_drafts(cell, cells)}"
        )
    middle, worst = median(every), max(every)
    names = {cell.name for cell in cells}
    lines.append(
        f"{len(names)} cells, {len(every)} configurations: median {middle:.1%} (at most "
        f"{MOST_MEDIAN:.0%}), worst {worst:.1%} (at most {MOST_ERROR:.0%})"
    )
    written = [c for cell in cells for c in cell.found if c.written_error is not None]
    if written:
        by_trace = [abs(c.error) for c in written]
        others = [abs(error) for c in written if (error := c.written_error) is not None]
        lines.append(
            f"servers wrote another text than the trace's for {len(written)} of them, median "
            f"{median(by_trace):.1%}, worst {max(by_trace):.1%}; on what they wrote, not judged, "
            f"median {median(others):.1%}, worst {max(others):.1%}"
        )
    if whole:
        lines.append(f"end to end on ik with long prompts: {_told_whole(max(whole))}")
    within = middle <= MOST_MEDIAN and worst <= MOST_ERROR and max(whole, default=0) <= MOST_WHOLE
    return Study(tuple(lines), within)


if __name__ == "__main__":
    result = table(read_cells(Path(sys.argv[1])))
    print("\n".join(result.lines))
    sys.exit(0 if result.within else 1)
