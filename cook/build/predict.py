"""``cook predict``: drafts replayed on a trace and priced with measured or typed times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from cook.engines.base import Engine, ModelArgs
from cook.errors import InputError, PrerequisiteError
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Output
from cook.paths import cook_home
from cook.scoring.price import BatchCurve, PricedReplies, best
from cook.scoring.sampled import SampledPrediction
from cook.scoring.simulate import Profile
from cook.steps.http_replay import Agreement
from cook.steps.replay import ReplayOutcome
from cook.steps.trace import given_trace


@dataclass(frozen=True)
class Asked:
    """``verify`` and ``draft_s`` replace measurements; ``target`` is measured where it is given.

    ``profile`` None: as the engine's flavour counts. ``over_http``: drafts are replayed through a
    stock server, which also happens where no worker can be built.
    """

    trace: Path
    drafts: tuple[Path, ...]
    n_max: tuple[int, ...]
    p_min: tuple[float, ...] = (0.0,)
    engine: str | None = None
    profile: Profile | None = None
    target: Path | None = None
    verify: BatchCurve | None = None
    draft_s: float | None = None
    target_args: ModelArgs = field(default_factory=ModelArgs)
    draft_args: ModelArgs = field(default_factory=ModelArgs)
    threads: int | None = None
    over_http: bool = False


@dataclass(frozen=True)
class Row:
    """One setting; the speeds of ``prediction`` mean nothing where no times are known.

    ``by_depth``: (drafted, accepted) at places 1, 2 ... of a draft.
    """

    prediction: PricedReplies
    by_depth: tuple[tuple[int, int], ...]
    break_even: float | None


@dataclass(frozen=True)
class Predicted:
    """One draft over the trace. ``sampled`` is rejection sampling, for traces at T > 0.

    ``replay`` is None where no worker could be built. ``agreement``: where the rows were replayed
    over HTTP although a worker was at hand, how the two compare, one for each row.
    """

    name: str
    path: Path
    file_bytes: int
    replay: ReplayOutcome | None
    rows: tuple[Row, ...]
    sampled: tuple[SampledPrediction, ...]
    agreement: tuple[Agreement, ...] = ()

    @property
    def best(self) -> Row:
        """The fastest setting; without times the one with the greatest acceptance length,
        which is the longest."""
        chosen = best([row.prediction for row in self.rows])
        return next(row for row in self.rows if row.prediction is chosen)


@dataclass(frozen=True)
class Told:
    """All drafts; ``no_draft`` is None, and speeds mean nothing, where no times are known."""

    trace: TraceFile
    profile: Profile
    engine: str
    no_draft: PricedReplies | None
    drafts: tuple[Predicted, ...]
    warnings: tuple[str, ...]
    prefill_known: bool
    """Whether prompts were timed too: without, there are no end-to-end speeds."""

    @property
    def priced(self) -> bool:
        """Whether times are known, so that speeds mean something."""
        return self.no_draft is not None


def run(asked: Asked, output: Output) -> Told:
    """Replay and time what is not stored yet, then predict every setting of every draft."""
    from cook.build.predict_steps import PredictSteps
    from cook.engines.discover import discover
    from cook.formats.gguf import read_gguf
    from cook.graph.step import source
    from cook.trace.compatible import require_draft, require_target

    trace = TraceFile(asked.trace)
    step = given_trace(asked.trace)
    engine = discover(asked.engine)
    for draft in asked.drafts:
        require_draft(trace, draft, engine.flavour)
    target = None
    if asked.target is not None:
        file = read_gguf(asked.target)
        target = source(file.shards)
        require_target(trace, asked.target, target)
    reason = _no_worker(engine)
    if reason is not None:
        output.warn(
            f"{reason.message}; drafts are replayed over HTTP, a token at a time",
            hint=reason.hint,
        )
        asked = replace(asked, over_http=True)
        if target is not None or (asked.verify is not None and asked.draft_s is None):
            raise PrerequisiteError(
                "without a worker nothing can be timed here",
                hint="type the times: --verify 1:146,2:170,5:220 --draft-ms 12",
            )
    if asked.over_http and any(asked.p_min):
        raise InputError("replay over HTTP scores p_min 0 only", hint="leave --p-min out")
    plan = PredictSteps(asked, engine, step, target, worker=reason is None)
    home = cook_home()
    executor = Executor(Store(home / "store"), output, logs=home / "logs", threads=asked.threads)
    executor.run(plan.steps())
    for failure in executor.outcomes.failures.values():
        if failure.blocked_by is None:
            raise failure.error
    return plan.told(trace, executor)


def _no_worker(engine: Engine) -> PrerequisiteError | None:
    """Why ``engine`` has no worker: no headers, no compiler, a static build."""
    from cook.engines.worker.compile import build_worker, locate

    try:
        build_worker(locate(engine))
    except PrerequisiteError as error:
        return error
    return None
