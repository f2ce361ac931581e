"""``cook predict``: drafts replayed on a trace, or typed numbers, priced with times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cook.engines.base import DraftSettings, ModelArgs
from cook.errors import InputError, PrerequisiteError
from cook.formats.naming import model_stem
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source, source
from cook.graph.store import Store
from cook.job.forecast import Forecaster
from cook.job.lay_score import as_rivals, forecast_plan
from cook.job.layout import DraftForecast, DraftPlan
from cook.job.slot_speeds import SlotForecaster, predicted_speeds, slot_plan
from cook.job.what_if import (
    ChainExpectation,
    chain_expectations,
    forecasts_after,
    parallel_speeds,
    sampled_speeds,
)
from cook.output import Output
from cook.paths import cook_home
from cook.recipe.schema import RivalSpec, SamplingSpec, rival_keys
from cook.record.record import SlotSpeed
from cook.scoring.batch_curve import BatchCurve, Link
from cook.scoring.iid import CAVEAT, IidRow, alpha_of, best_length, break_even, iid_row
from cook.scoring.parallel import ParallelSpeed
from cook.scoring.price import Forecast
from cook.scoring.sampled import SampledPrediction
from cook.scoring.simulate import PROFILES, RULES, Profile
from cook.steps.replay import ReplayOutcome
from cook.steps.trace import given_trace
from cook.trace.session import TOP

if TYPE_CHECKING:
    from cook.documents.spec import Spec

S = TypeVar("S", bound="Spec")

NAMED_PROFILES = {
    "mainline": Profile.MAINLINE_2026_10,
    "mainline-2025": Profile.MAINLINE_2025,
    "ik": Profile.IK_2026_08,
}
SERVER_N_MAX = {
    Profile.MAINLINE_2026_10: 3,
    Profile.MAINLINE_2025: 16,
    Profile.IK_2026_08: 16,
}
"""n_max of a llama-server that was given none."""
CONSTANT = "every batch is taken to cost what one token costs; verification is dearer"
TRACE_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
MAX_TRACE_LENGTH = 32


@dataclass(frozen=True)
class PredictRequest:
    """The options as they were typed, by their names; see ``cook predict --help``."""

    trace: Path | None = None
    drafts: tuple[Path, ...] = ()
    rival: tuple[str, ...] = ()
    n_max: tuple[int, ...] = TRACE_LENGTHS
    p_min: tuple[float, ...] = (0.0,)
    profile: str | None = None
    target: Path | None = None
    target_ms: float | None = None
    verify: str | None = None
    draft_ms: float | None = None
    overhead_ms: float = 0.0
    acceptance: float | None = None
    acceptance_at: int | None = None
    token_acceptance: float | None = None
    temperature: tuple[float, ...] = ()
    top_k: tuple[int, ...] = ()
    top_p: tuple[float, ...] = ()
    min_p: tuple[float, ...] = ()
    flash_attention: bool | None = None
    gpu_layers: int | None = None
    cache_type: str | None = None
    slots: tuple[int, ...] = ()
    link_ms: float | None = None
    link_mbit: float | None = None
    engine: str | None = None
    threads: int | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Draft lengths in order, each once."""
        return tuple(sorted(set(self.n_max)))

    @property
    def named_profile(self) -> Profile | None:
        """Whose accounting was asked for; InputError for an unknown one."""
        known = {**NAMED_PROFILES, **{profile.value: profile for profile in SERVER_N_MAX}}
        if self.profile is None or self.profile in known:
            return known.get(self.profile or "")
        raise InputError(f"no profile {self.profile!r}", hint=f"one of {', '.join(NAMED_PROFILES)}")

    @cached_property
    def rivals(self) -> tuple[RivalSpec, ...]:
        """``ngram-map-k:size_n=8,size_m=16`` as in a recipe; InputError for anything else."""
        return tuple(
            _validated(RivalSpec, rival_keys(text), f"rival {text}") for text in self.rival
        )

    def chains(self, recorded: Sampling) -> tuple[Sampling, ...]:
        """The sampling chains that were asked for, next to that of the trace."""
        if not (self.temperature or self.top_k or self.top_p or self.min_p):
            return ()
        lists = {
            "temperature": self.temperature or (recorded.temperature,),
            "top_k": self.top_k or None,
            "top_p": self.top_p or None,
            "min_p": self.min_p or None,
        }
        return _validated(SamplingSpec, lists, "sampling").chains

    @property
    def typed(self) -> bool:
        """Whether an acceptance was typed, and so stands in for a trace."""
        return self.acceptance is not None or self.token_acceptance is not None

    @property
    def draft_args(self) -> ModelArgs:
        return ModelArgs(
            flash_attention=self.flash_attention,
            threads=self.threads,
            n_gpu_layers=self.gpu_layers,
            cache_type_k=self.cache_type,
            cache_type_v=self.cache_type,
        )

    @property
    def link(self) -> Link | None:
        """Between the machines of target and draft; None where they are one."""
        if self.link_ms is None:
            return None
        return Link(self.link_ms / 1000, self.link_mbit * 1e6 / 8 if self.link_mbit else None)

    @cached_property
    def draft_curve(self) -> BatchCurve | None:
        """The typed time of the draft, for batches of every width."""
        return None if self.draft_ms is None else _constant(self.draft_ms)

    @cached_property
    def verify_curve(self) -> BatchCurve | None:
        """``1:146,2:170,5:220`` (tokens:ms) as a curve; else the one time for every width.

        InputError for anything else, and for two different times of one token.
        """
        if self.verify is None:
            return None if self.target_ms is None else _constant(self.target_ms)
        hint = "--verify 1:146,2:170,5:220"
        points: dict[int, float] = {}
        for part in map(str.strip, self.verify.split(",")):
            try:
                width, milliseconds = part.split(":")
                key, value = int(width), float(milliseconds)
            except ValueError:
                raise InputError(f"--verify: {part!r} is not TOKENS:MS", hint=hint) from None
            if not 1 <= key <= 1024 or not 0.0 < value < 1e9 or key in points:
                raise InputError(f"--verify: {part!r} is out of range or given twice")
            points[key] = value / 1000
        if self.target_ms is not None:
            one = self.target_ms / 1000
            if points.setdefault(1, one) != one:
                raise InputError("--target-ms and --verify give one token two different times")
        if 1 not in points:
            raise InputError("--verify needs the time of one token", hint=hint)
        widths = tuple(sorted(points))
        return BatchCurve((0,), widths, (tuple(points[w] for w in widths),), typed=True)


def _validated(spec: type[S], keys: dict[str, Any], named: str) -> S:
    """``keys`` as the recipe's ``spec``; InputError, with what was ``named``, for anything else."""
    from pydantic import ValidationError

    try:
        return spec.model_validate(keys)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise InputError(f"{named}: {message}") from None


def _constant(milliseconds: float) -> BatchCurve:
    return BatchCurve((0,), (1,), ((milliseconds / 1000,),), typed=True)


@dataclass(frozen=True)
class TypedPrediction:
    """What typed numbers say, as if tokens were accepted independently with chance ``alpha``: what
    ``--json`` writes. ``best``: place of the fastest of ``settings``; ``best_length_closed_form``
    where every batch is taken to cost the same.
    """

    alpha: float
    no_draft_tokens_per_s: float
    settings: tuple[IidRow, ...]
    best: int
    best_length_closed_form: float | None
    warnings: tuple[str, ...]
    caveat: str = CAVEAT


def predict_typed(request: PredictRequest) -> TypedPrediction:
    """Predict from the typed numbers; InputError for those that are missing."""
    if request.trace is not None:
        raise InputError("--acceptance replaces the trace: give one of them")
    curve = request.verify_curve
    if curve is None or request.draft_ms is None:
        raise InputError(
            "--acceptance needs the times of target and draft",
            hint="--target-ms 146 --draft-ms 12, and better --verify 1:146,2:170,5:220",
        )
    draft_s = (request.draft_ms + (request.link_ms or 0.0)) / 1000
    plain_s = float(curve.at(1, 0))
    profile = request.named_profile or Profile.MAINLINE_2026_10
    alpha, warnings = _one_token_acceptance(request, profile)
    warnings += _beyond(curve, request.lengths)
    if request.link_mbit is not None:
        warnings.append(
            "--link-mbit is left out: how large logits are is known with a trace only, 4 bytes for "
            "every token of the vocabulary"
        )
    rows = tuple(
        iid_row(alpha, n, curve, draft_s, profile, request.overhead_ms / 1000)
        for n in request.lengths
    )
    closed = len(curve.widths) == 1 and 0 < alpha < 1 and draft_s < plain_s
    return TypedPrediction(
        alpha=alpha,
        no_draft_tokens_per_s=1 / plain_s,
        settings=rows,
        best=max(range(len(rows)), key=lambda place: rows[place].decode_tokens_per_s),
        best_length_closed_form=best_length(alpha, plain_s, draft_s) if closed else None,
        warnings=tuple(warnings),
    )


def _one_token_acceptance(request: PredictRequest, profile: Profile) -> tuple[float, list[str]]:
    """The chance of one drafted token, and what had to be assumed for it.

    Accepted / drafted falls with the length of drafts, so it is of the n_max that it was measured
    at: --acceptance-at, else the only --n-max, else what a server takes that was given none.
    """
    ratio, token, length = request.acceptance, request.token_acceptance, request.acceptance_at
    if token is not None and ratio is None and length is None:
        return token, []
    if token is not None or ratio is None:
        raise InputError(
            "--token-acceptance is of one token, --acceptance (--acceptance-at) of all that "
            "were drafted: give one of them"
        )
    if length is not None or len(request.lengths) == 1:
        return alpha_of(ratio, length or request.lengths[0]), []
    length = SERVER_N_MAX[profile]
    return alpha_of(ratio, length), [
        f"--acceptance {ratio:g} is taken to be measured at n_max {length}, llama-server's own "
        f"({profile.value}): --acceptance-at N says another"
    ]


def _beyond(curve: BatchCurve, lengths: Sequence[int]) -> Iterator[str]:
    """Which draft lengths are priced beyond the times that were typed."""
    widest = curve.widths[-1]
    guessed = [n for n in lengths if n + 1 > widest]
    if curve.typed and len(curve.widths) > 1 and guessed:
        named = ", ".join(map(str, guessed))
        yield (
            f"--verify ends at {widest} tokens: what n_max {named} costs is drawn on from there, "
            f"a guess; type the time of {guessed[-1] + 1} tokens"
        )


@dataclass(frozen=True)
class DraftPrediction:
    """One draft over the trace. ``sampled`` is rejection sampling, for traces at T > 0."""

    name: str
    path: Path
    replay: ReplayOutcome
    settings: tuple[Forecast, ...]
    break_even: tuple[float | None, ...]
    """Of each of ``settings``, accepted / drafted from which on it pays; None without times."""
    sampled: tuple[SampledPrediction, ...]
    expected: tuple[ChainExpectation, ...]
    """Under the sampling chains that were asked for, at every length."""
    parallel: tuple[ParallelSpeed, ...]
    """PEARL and DSI; none without times."""

    @property
    def best(self) -> int:
        """Place of the fastest setting, of equals the one that drafts least; without times of that
        with the greatest acceptance length, which is the longest."""

        def speed(place: int) -> tuple[float, int]:
            found = self.settings[place].figures
            return found.decode_speed or 0.0, -(found.drafted or 0)

        return max(range(len(self.settings)), key=speed)


@dataclass(frozen=True)
class TracePrediction:
    """All drafts on a trace; ``no_draft`` is None, and speeds mean nothing, where no times are
    known."""

    trace: TraceFile
    profile: Profile
    engine: str
    no_draft: Forecast | None
    drafts: tuple[DraftPrediction, ...]
    rivals: tuple[Forecast, ...]
    two_stage: tuple[Forecast, ...]
    """Every rival before every draft, at the best setting of the two."""
    slots: tuple[SlotSpeed, ...]
    """Requests in parallel: no draft and every setting of every draft, by slots."""
    warnings: tuple[str, ...]
    prefill_known: bool
    """Whether prompts were timed too: without, there are no end-to-end speeds."""


def predict_on_trace(request: PredictRequest, output: Output) -> TracePrediction:
    """Replay and time what is not stored yet, then predict every setting of every draft."""
    from cook.engines.discover import discover
    from cook.formats.gguf import read_gguf
    from cook.trace.compatible import require_draft, require_target

    path = _trace_of(request)
    verify, profile = request.verify_curve, request.named_profile
    trace, step = TraceFile(path), given_trace(path)
    engine = discover(request.engine)
    if request.slots and engine.flavour is Flavour.IK_LLAMA_CPP:
        raise PrerequisiteError(
            "ik_llama.cpp drafts with one slot only", hint="--slots with a build of llama.cpp"
        )
    for draft in request.drafts:
        require_draft(trace, draft, engine.flavour)
    target: tuple[Source, ModelArgs] | None = None
    if request.target is not None:
        model = source(read_gguf(request.target).shards)
        require_target(trace, request.target, model)
        args = ModelArgs(flash_attention=request.flash_attention, threads=request.threads)
        target = model, args
    chains = request.chains(trace.header.sampler)
    if chains and not trace.header.top:
        raise InputError(
            "other sampling chains need the target's and the draft's probabilities",
            hint="record a trace at that temperature: cook trace --temperature T",
        )
    profile = profile or PROFILES[engine.flavour]
    # Where the engine's p_min never fires, one is as good as another.
    chances = dict.fromkeys(request.p_min if RULES[profile].uses_p_min else (0.0,))
    rivals = as_rivals(engine.flavour, request.rivals)
    plan = forecast_plan(
        engine,
        step,
        [DraftPlan(model_stem(file), source(read_gguf(file).shards)) for file in request.drafts],
        tuple(DraftSettings(n, 0, p) for p in chances for n in request.lengths),
        draft_args={None: request.draft_args},
        target=target,
        timed=(target is not None or verify is not None) and request.draft_ms is None,
        profile=profile,
        n_predict=trace.header.n_predict,
        context=trace.header.context,
        rivals=rivals,
        top=TOP if chains else 0,
        two_stage=rivals,
    )
    in_slots = [slot_plan(plan, draft, request.slots) for draft in plan.drafts if request.slots]
    home = cook_home()
    with Executor(
        Store(home / "store"), output, logs=home / "logs", threads=request.threads
    ) as executor:
        executor.run(plan.steps())
        executor.run(step for one in in_slots for step in one.steps())
    for failure in executor.outcomes.failures.values():
        if failure.blocked_by is None:
            raise failure.error
    forecaster = Forecaster(plan, executor.outcomes, verify, request.draft_curve, request.link)
    bare, *forecasts = forecaster.forecasts()
    of_drafts = [[forecasts.pop(0) for _ in plan.settings] for _ in plan.drafts]
    return TracePrediction(
        trace=trace,
        profile=profile,
        engine=engine.name,
        no_draft=bare if forecaster.priced else None,
        drafts=tuple(
            _of_draft(forecaster, draft, file, found, chains)
            for draft, file, found in zip(plan.drafts, request.drafts, of_drafts, strict=True)
        ),
        rivals=tuple(forecasts),
        two_stage=tuple(
            max(both, key=lambda one: one.figures.decode_speed or 0.0)
            for draft in plan.drafts
            for rival in plan.rivals
            if (both := forecasts_after(forecaster, draft, rival))
        ),
        slots=tuple(
            speed
            for number, one in enumerate(in_slots)
            for speed in predicted_speeds(SlotForecaster(forecaster, one))
            if number == 0 or speed.settings is not None  # no draft once
        ),
        warnings=tuple(dict.fromkeys(_doubts(request, trace, forecaster, chains))),
        prefill_known=plan.verify is not None and request.draft_ms is None,
    )


def _trace_of(request: PredictRequest) -> Path:
    """The trace; InputError where there is none, and for options that do not go together."""
    if request.trace is None or not (request.drafts or request.rival):
        raise InputError(
            "a trace and a draft (or --rival) are needed, or --acceptance",
            hint="cook predict FILE.trace DRAFT.gguf, or cook predict --acceptance 0.62 "
            "--target-ms 146 --draft-ms 12",
        )
    if request.overhead_ms or request.acceptance_at is not None:
        raise InputError("--overhead-ms and --acceptance-at go with --acceptance")
    if request.target is not None and (request.verify or request.target_ms):
        raise InputError("--target measures what --verify and --target-ms type: give one of them")
    if request.link_mbit is not None and request.link_ms is None:
        raise InputError("--link-mbit goes with --link-ms", hint="--link-ms 0.2 --link-mbit 1000")
    if request.slots and (request.target is None or request.draft_ms or not request.drafts):
        raise InputError(
            "--slots needs drafts and the times of both models, measured here",
            hint="cook predict FILE.trace DRAFT.gguf --target TARGET.gguf --slots 4",
        )
    if request.lengths[0] < 1 or request.lengths[-1] > MAX_TRACE_LENGTH:
        # what a trace serves past the end of a reply
        raise InputError(f"--n-max must be between 1 and {MAX_TRACE_LENGTH}")
    return request.trace


def _of_draft(
    forecaster: Forecaster,
    draft: DraftForecast,
    path: Path,
    found: Sequence[Forecast],
    chains: Sequence[Sampling],
) -> DraftPrediction:
    """``found`` of ``draft`` under every setting, and what else its replay says."""
    plan, timings = forecaster.plan, forecaster.timings(draft)
    replay = forecaster.outcomes.result(draft.replay)
    assert replay is not None, "a failure was raised before"
    lengths = tuple(dict.fromkeys(settings.n_max for settings in plan.settings))
    even: list[float | None] = [None] * len(found)
    if timings is not None and forecaster.priced:
        runs = found[0].runs
        middle = round(sum(r.prompt_n + r.predicted_n / 2 for r in runs) / len(runs))
        even = [break_even(timings, s.n_max, plan.profile, middle) for s in plan.settings]
    return DraftPrediction(
        name=draft.draft.name,
        path=path,
        replay=replay,
        settings=tuple(found),
        break_even=tuple(even),
        sampled=tuple(sampled_speeds(forecaster, draft, lengths)),
        expected=tuple(
            one for chain in chains for one in chain_expectations(forecaster, draft, chain, lengths)
        ),
        parallel=parallel_speeds(forecaster, draft, lengths),
    )


def _doubts(
    request: PredictRequest, trace: TraceFile, forecaster: Forecaster, chains: Sequence[Sampling]
) -> Iterator[str]:
    """What is doubtful about trace, times and options, and taken to be so."""
    plan = forecaster.plan
    if request.link is not None:
        yield (
            f"the drafts are taken to be behind a round trip of {request.link_ms:g} ms, as fast "
            "there as here: every decode of theirs waits for it"
        )
    if trace.cut_short:
        yield f"{trace.path}: its last reply is cut short and left out"
    if trace.header.tokenizer is None:
        yield (
            f"{trace.path}: the target's tokens are not known (recorded without --tokenizer), "
            "so the drafts' could not be compared with them"
        )
    needed = max(request.lengths) + 1
    has = min((h.tokens - h.emitted for h in trace.heads if h.stop == "eog"), default=needed)
    if not RULES[plan.profile].breaks_at_eog and has < needed:
        yield (
            f"{plan.profile.value} drafts past the end of a reply; {trace.path} has {has} tokens "
            f"there, n_max {needed - 1} needs {needed}: counts at the ends of replies are too low"
        )
    if any(request.p_min) and not RULES[plan.profile].uses_p_min:
        yield f"{plan.profile.value}: p_min never ends a draft there, and is left out"
    for step in plan.curves():
        if (curve := forecaster.curve(step)) is not None:
            yield from curve.warnings
    if request.verify_curve is not None:
        widest = [rival.settings.longest for rival in plan.rivals]
        yield from _beyond(request.verify_curve, (*request.lengths, *widest))
    if request.target_ms is not None and request.verify is None:
        yield CONSTANT
    recorded = trace.header.sampler
    for chain in chains:
        if replace(chain.applied(recorded.draws), seed=recorded.seed) == recorded:
            continue
        at = " ".join(
            f"--{name.replace('_', '-')} {value:g}"
            for name in ("temperature", "top_k", "top_p", "min_p")
            if (value := getattr(chain, name)) is not None
        )
        yield (
            f"at {chain.chain}: on the text of this trace ({recorded.chain}), and another "
            "temperature writes another: a lower one's text flatters it; "
            f"`cook trace {at}` has no such error"
        )
