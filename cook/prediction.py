"""``cook predict``: drafts replayed on a trace and priced with measured or typed times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.engines.base import Engine, Flavour, ModelArgs
from cook.errors import InputError
from cook.formats.naming import model_stem
from cook.formats.trace import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source, Step
from cook.graph.store import Store
from cook.output import Output
from cook.paths import cook_home
from cook.speculation.curve import BatchCurve
from cook.speculation.predict import Prediction, Timings, best, break_even, predict
from cook.speculation.profiles import RULES, Profile, Setting
from cook.speculation.rejection import acceptance_probabilities
from cook.speculation.sampled import SampledPrediction, SampledReply, predict_sampled
from cook.speculation.simulate import Positions, simulate
from cook.steps.curve import PASSES, CurveOutcome, CurveStep, combined, widths_for
from cook.steps.forecast import PROFILES
from cook.steps.replay import ReplayOutcome, ReplayStep, positions_in, replayed
from cook.steps.trace import RecordedTraceStep, given_trace

if TYPE_CHECKING:
    from cook.engines.worker_results import Replay
    from cook.formats.trace import Reply

MAX_N = 32
"""Longest draft that a trace's tokens beyond the end of a reply serve."""


@dataclass(frozen=True)
class Asked:
    """``verify`` and ``draft_s`` replace measurements; ``target`` is measured where it is given.

    ``profile`` None: as the engine's flavour counts.
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


@dataclass(frozen=True)
class Row:
    """One setting; the speeds of ``prediction`` mean nothing where no times are known.

    ``by_depth``: (drafted, accepted) at places 1, 2 ... of a draft.
    """

    prediction: Prediction
    by_depth: tuple[tuple[int, int], ...]
    break_even: float | None


@dataclass(frozen=True)
class Predicted:
    """One draft over the trace. ``sampled`` is rejection sampling, for traces at T > 0."""

    name: str
    path: Path
    file_bytes: int
    replay: ReplayOutcome
    rows: tuple[Row, ...]
    sampled: tuple[SampledPrediction, ...]

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
    no_draft: Prediction | None
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
    from cook.engines.discover import discover
    from cook.formats.gguf import read_gguf
    from cook.graph.digest import source
    from cook.recording.compatible import require_draft

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
    plan = _Plan(asked, engine, step, target)
    home = cook_home()
    executor = Executor(Store(home / "store"), output, logs=home / "logs", threads=asked.threads)
    executor.run(plan.steps())
    for failure in executor.outcomes.failures.values():
        if failure.blocked_by is None:
            raise failure.error
    return plan.told(trace, executor)


def require_target(trace: TraceFile, path: Path, target: Source) -> None:
    """InputError, with the reason, when ``trace`` is of another target, tokenizer or template."""
    from cook.formats.gguf import read_gguf
    from cook.recording.session import sha256
    from cook.vocabulary import read_vocabulary

    file = read_gguf(path)
    template = sha256(file.string("tokenizer.chat_template") or "")
    rendered = trace.header.template_sha256 != sha256("")
    trace.require(
        tokenizer_sha256=read_vocabulary(file).digest,
        template_sha256=template if rendered else None,
        target_sha256=target.digest,
    )


class _Plan:
    """The steps below one command, and what their outcomes say."""

    def __init__(
        self, asked: Asked, engine: Engine, trace: RecordedTraceStep, target: Source | None
    ) -> None:
        from cook.formats.gguf import read_gguf
        from cook.graph.digest import source

        self.asked, self.engine = asked, engine
        self.profile = asked.profile or PROFILES[Flavour(engine.flavour)]
        self.settings = _settings(asked, self.profile)
        rollouts = max(asked.n_max) if any(s.p_min for s in self.settings) else 0
        widths = widths_for(max(asked.n_max))
        self.trace = trace
        self.verify: tuple[CurveStep, ...] = ()
        if target is not None and asked.verify is None:
            args = asked.target_args
            self.verify = tuple(
                CurveStep(engine, "target", target, trace, args, True, widths, turn)
                for turn in range(PASSES)
            )
        self.replays: list[ReplayStep] = []
        self.curves: list[tuple[CurveStep, ...]] = []
        timed = bool(self.verify or asked.verify is not None) and asked.draft_s is None
        for path in asked.drafts:
            draft, name = source(read_gguf(path).shards), model_stem(path)
            self.replays.append(ReplayStep(engine, name, draft, trace, asked.draft_args, rollouts))
            args = asked.draft_args
            passes = range(PASSES) if timed else ()
            self.curves.append(
                tuple(
                    CurveStep(engine, name, draft, trace, args, False, widths, turn)
                    for turn in passes
                )
            )

    def steps(self) -> list[Step[Any]]:
        """The replays, then the timings pass after pass, all models in turn."""
        steps: list[Step[Any]] = [self.trace, *self.replays]
        for turn in range(PASSES):
            for curve in (self.verify, *self.curves):
                steps += curve[turn : turn + 1]
        return steps

    def told(self, trace: TraceFile, executor: Executor) -> Told:
        outcomes = executor.outcomes
        verify = _curve(self.verify, executor)
        warnings = [*self._warnings(trace), *(verify.warnings if verify is not None else ())]
        found, no_draft = [], None
        for path, replay, curve in zip(self.asked.drafts, self.replays, self.curves, strict=True):
            times = _curve(curve, executor)
            warnings += times.warnings if times is not None else ()
            timings = self._timings(verify, times)
            outcome = outcomes.result(replay)
            assert outcome is not None, "failures were raised"
            pairs = list(replayed(replay, trace, outcomes.artifact(replay)))
            texts = [self._positions(trace, *pair) for pair in pairs]
            if no_draft is None and timings is not None:
                no_draft = self._predict(pairs, texts, Setting(0), timings)
            rows = [self._row(pairs, texts, setting, timings) for setting in self.settings]
            found.append(
                Predicted(
                    name=replay.name,
                    path=path,
                    file_bytes=path.stat().st_size,
                    replay=outcome,
                    rows=tuple(rows),
                    sampled=self._sampled(trace, pairs, timings),
                )
            )
        return Told(
            trace=trace,
            profile=self.profile,
            engine=self.engine.name,
            no_draft=no_draft,
            drafts=tuple(found),
            warnings=tuple(dict.fromkeys(warnings)),
            prefill_known=verify is not None and self.asked.draft_s is None,
        )

    def _warnings(self, trace: TraceFile) -> list[str]:
        """What is doubtful about the trace."""
        header, found = trace.header, []
        if trace.cut_short:
            found.append(f"{trace.path}: its last reply is cut short and left out")
        if header.tokenizer is None:
            found.append(
                f"{trace.path}: the target's tokens are not known (recorded without --tokenizer), "
                "so the drafts' could not be compared with them"
            )
        beyond = max(self.asked.n_max) + 1
        ends = any(head.stop == "eog" for head in trace.heads)
        if ends and not RULES[self.profile].breaks_at_eog and header.extra_tokens < beyond:
            found.append(
                f"{self.profile.value} drafts past the end of a reply; {trace.path} has "
                f"{header.extra_tokens} tokens there, n_max {beyond - 1} needs {beyond}: counts at "
                "the ends of replies are too low"
            )
        return found

    def _timings(self, verify: CurveOutcome | None, draft: CurveOutcome | None) -> Timings | None:
        target = self.asked.verify
        if verify is not None:
            target = BatchCurve(verify.depths, verify.widths, verify.seconds)
        if target is None:
            return None
        typed = self.asked.draft_s
        curve = None
        if typed is not None:
            curve = BatchCurve((0,), (1,), ((typed,),))
        elif draft is not None:
            curve = BatchCurve(draft.depths, draft.widths, draft.seconds)
        return Timings(
            verify=target,
            draft=curve,
            target_sample_s=verify.sample_s if verify else 0.0,
            draft_sample_s=draft.sample_s if draft else 0.0,
            target_prefill_s_per_token=verify.prefill_s_per_token if verify else 0.0,
            draft_prefill_s_per_token=draft.prefill_s_per_token if draft else 0.0,
        )

    def _positions(self, trace: TraceFile, reply: Reply, found: Replay) -> Positions:
        header = trace.header
        return positions_in(trace, reply, found, n_predict=header.n_predict, context=header.context)

    def _predict(
        self,
        pairs: Sequence[tuple[Reply, Replay]],
        texts: Sequence[Positions],
        setting: Setting,
        timings: Timings,
    ) -> Prediction:
        return predict(
            texts,
            setting,
            timings,
            self.profile,
            categories=[reply.head.category for reply, _ in pairs],
            weights=[reply.head.weight for reply, _ in pairs],
        )

    def _row(
        self,
        pairs: Sequence[tuple[Reply, Replay]],
        texts: Sequence[Positions],
        setting: Setting,
        timings: Timings | None,
    ) -> Row:
        import numpy as np

        found = self._predict(pairs, texts, setting, timings or _UNIT)
        depths = np.zeros((2, setting.n_max), np.int64)
        for text in texts:
            depths += np.array(simulate(text, setting, self.profile).by_depth(setting.n_max))
        middle = round(sum(t.prompt + t.reply / 2 for t in texts) / len(texts))
        even = break_even(timings, setting, self.profile, middle) if timings else None
        return Row(found, tuple((int(d), int(a)) for d, a in depths.T), even)

    def _sampled(
        self,
        trace: TraceFile,
        pairs: Sequence[tuple[Reply, Replay]],
        timings: Timings | None,
    ) -> tuple[SampledPrediction, ...]:
        if not trace.header.sampler.temperature:
            return ()
        replies = [_sampled_reply(trace, reply, found) for reply, found in pairs]
        known = [reply for reply in replies if reply is not None]
        if not known:
            return ()
        return tuple(
            predict_sampled(known, n_max, timings, self.profile) for n_max in self.asked.n_max
        )


_UNIT = Timings(verify=BatchCurve((0,), (1,), ((1.0,),)), draft=BatchCurve((0,), (1,), ((1e-9,),)))
"""Every target step costs the same and drafting nothing: ranks by acceptance length alone."""


def _curve(passes: Sequence[CurveStep], executor: Executor) -> CurveOutcome | None:
    """Medians over the passes; None where the curve is not measured."""
    results = [executor.outcomes.result(step) for step in passes]
    done = [result for result in results if result is not None]
    return combined(done) if done else None


def _settings(asked: Asked, profile: Profile) -> tuple[Setting, ...]:
    """Every n_max with every p_min; where the engine's p_min never fires, only 0."""
    chances = asked.p_min if RULES[profile].uses_p_min else (0.0,)
    return tuple(Setting(n, 0, p) for p in dict.fromkeys(chances) for n in asked.n_max)


def _sampled_reply(trace: TraceFile, reply: Reply, found: Replay) -> SampledReply | None:
    """The chance of each emitted token under rejection sampling; None where nothing is known.

    A hole takes the mean chance of the reply's other tokens.
    """
    import numpy as np

    emitted = slice(0, reply.head.emitted)
    known = reply.known[emitted]
    if not known.any():
        return None
    accept = acceptance_probabilities(reply.chain_logp[emitted], found.logq_t[emitted])
    accept = np.where(known, accept, accept[known].mean())
    head = reply.head
    return SampledReply(
        head.prompt_tokens, accept, trace.header.n_predict, head.category, head.weight
    )


def typed_curve(points: str | None, target_ms: float | None) -> BatchCurve | None:
    """``1:146,2:170,5:220`` (tokens:ms) as a curve; else the one time for every width.

    InputError for anything else, and for two different times of one token.
    """
    if points is None:
        return None if target_ms is None else BatchCurve((0,), (1,), ((target_ms / 1000,),))
    found: dict[int, float] = {}
    for part in points.split(","):
        width, _, milliseconds = part.partition(":")
        try:
            key, value = int(width), float(milliseconds)
        except ValueError:
            raise InputError(
                f"--verify: {part.strip()!r} is not TOKENS:MS", hint="--verify 1:146,2:170,5:220"
            ) from None
        if not 1 <= key <= 1024 or not 0.0 < value < 1e9 or key in found:
            raise InputError(f"--verify: {part.strip()!r} is out of range or given twice")
        found[key] = value / 1000
    if target_ms is not None and found.setdefault(1, target_ms / 1000) != target_ms / 1000:
        raise InputError("--target-ms and --verify give one token two different times")
    if 1 not in found:
        raise InputError("--verify needs the time of one token", hint="--verify 1:146,2:170,5:220")
    widths = tuple(sorted(found))
    return BatchCurve((0,), widths, (tuple(found[w] for w in widths),))


def with_defaults(asked: Asked) -> Asked:
    """``asked``, checked: lengths in order, each once, and within what a trace serves."""
    lengths = tuple(sorted(set(asked.n_max)))
    if not lengths or lengths[0] < 1 or lengths[-1] > MAX_N:
        raise InputError(f"--n-max must be between 1 and {MAX_N}")
    return replace(asked, n_max=lengths)
