"""Replay against the server's own counts, for quants of the demo's draft and of a real model.

Every quant drafts live for its target; then the very tokens which that run emitted are replayed in
one pass, and drafted and accepted tokens are compared, in all and request by request. `counts` has
the demo pair, quants from 16 down to 1.7 bits; `counts-real` SmolLM2-135M-Instruct in F16 and six
quants of it; `counts-exact` draws requests of it once more at the server's own batch shapes, which
must give both counts of every one. Nothing is timed: other programs may run beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.study import Study, empty_executor
from cook.engines.base import DraftSettings
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.formats.trace_file import Reply, TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source
from cook.job.count_accuracy import acceptance_deviation
from cook.job.layout import Configuration, DraftForecast, ForecastPlan, Layout
from cook.job.prepare import prepare
from cook.recipe.load import parse_recipe
from cook.record.record import PromptRun
from cook.scoring.simulate import PROFILES, positions_of, simulate
from cook.steps.checks import emitted_tokens
from cook.steps.deal import DealStep
from cook.steps.trace import TRACE_FILE
from cook.steps.work import MODEL_FILE

MOST_POINTS, LEAST_DRAFTED = 0.5, 20_000
MOST_MEAN = 0.2
MAKING = frozenset({"imatrix", "quantize", "head", "reduce"})
DEMO = """\
version: 1
name: demo-counts
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 60, args: {threads: 1}}
quants:
  - {name: Q8_0, type: Q8_0}
  - {name: Q4_K_M, type: Q4_K_M}
  - {name: Q2_K, type: Q2_K}
  - {name: IQ2_XXS, type: IQ2_XXS}
  - {name: TQ1_0, type: TQ1_0, mixture: pure}
  - name: IQ1_S
    type: IQ1_S
    rules:
      - {attention: q2_K}
      - {dense_ffn: iq2_xxs}
      - {shared_experts: iq2_xxs}
      - {routed_experts: iq1_s}
      - {embeddings: q2_K}
      - {output: q4_K}
score:
  method: METHOD
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  max_tokens: 256
  context: 4096
  draft: {n_max: 8, args: {threads: 1}}
pick: {maximize: decode_speed}
"""
REAL = """\
version: 1
name: real-counts
model: {source: "demo://smollm2-135m-instruct-f16.gguf"}
imatrix: {corpus: imatrix/calibration-v1.txt, chunks: 24, args: {threads: 2}}
quants:
  - {name: Q8_0, type: Q8_0}
  - {name: Q6_K, type: Q6_K}
  - {name: Q5_K_M, type: Q5_K_M}
  - {name: Q4_0, type: Q4_0}
  - {name: IQ4_XS, type: IQ4_XS}
  - {name: IQ2_XS, type: IQ2_XS}
score:
  method: METHOD
  target: {source: "demo://smollm2-135m-instruct-f16.gguf", args: {threads: 2}}
  prompts: default
  categories: [code, explain, chat, reasoning]
  limit: PROMPTS
  max_tokens: TOKENS
  context: 2048
  draft: {n_max: NMAX, p_min: PMIN, args: {threads: 2}}
pick: {maximize: decode_speed}
"""
"""SmolLM2-135M-Instruct drafted for by quants of itself (`make real` installs what carries it)."""


@dataclass(frozen=True)
class Counted:
    """(drafted, accepted) tokens of the same requests as the server and as one-pass replay counts
    them, ``error`` the standard error of their acceptance's difference in points, over requests;
    ``equal`` of ``requests`` agree in both, ``exact`` at the server's own batch shapes (None where
    these were not tried)."""

    theirs: tuple[int, int]
    ours: tuple[int, int]
    error: float
    equal: int
    requests: int
    exact: int | None

    @property
    def points(self) -> float:
        """Acceptance by replay minus the server's, in points."""
        return 100 * (self.ours[1] / self.ours[0] - self.theirs[1] / self.theirs[0])

    def __str__(self) -> str:
        (drafted, accepted), (ours, agreed) = self.theirs, self.ours
        exact = "" if self.exact is None else f", at its shapes {self.exact}"
        return (
            f"server {accepted}/{drafted} = {accepted / drafted:.2%}, replay {agreed}/{ours} = "
            f"{agreed / ours:.2%}, {self.points:+.2f} +- {self.error:.2f} points; "
            f"{self.equal} of {self.requests} requests equal{exact}"
        )


def counts() -> Study:
    """Acceptance by replay minus the server's, in points, for every quant of the demo's draft."""
    return _sums(*_layouts(DEMO, "bundled"), LEAST_DRAFTED)


def real_counts(engine: str) -> Study:
    """The same on the real model, 40 prompts of 128 tokens."""
    return _sums(*_layouts(_real(40, 128, [8], [0.0]), engine), 0)


def exact_counts(engine: str) -> Study:
    """Every request of the real model at the server's shapes: three quants, n_max 1, 2, 4, 8."""
    layout, traced = _layouts(_real(10, 64, [1, 2, 4, 8], [0.0, 0.5]), engine)
    kept = ("Q8_0", "Q4_0", "IQ2_XS")
    lines, within = [], True
    with empty_executor() as executor:
        for configuration, found in counted(executor, layout, traced, kept, exact=True):
            within &= found.exact == found.requests
            lines.append(f"  {configuration.name:26} {found}")
    return Study((f"requests recounted at the shapes of {engine}'s servers: all", *lines), within)


def _real(prompts: int, tokens: int, n_max: list[int], p_min: list[float]) -> str:
    return (
        REAL.replace("PROMPTS", str(prompts))
        .replace("TOKENS", str(tokens))
        .replace("NMAX", str(n_max))
        .replace("PMIN", str(p_min))
    )


def _layouts(recipe: str, engine: str) -> tuple[Layout, Layout]:
    """Scored live, and by replay."""
    live, replay = (
        parse_recipe(recipe.replace("METHOD", method), Path("study.yaml").absolute())
        for method in ("live", "replay")
    )
    return prepare(live, engines=[engine]).layouts[0], prepare(replay, engines=[engine]).layouts[0]


def _sums(layout: Layout, traced: Layout, least_drafted: int) -> Study:
    lines, points = [], []
    within = True
    with empty_executor() as executor:
        for configuration, found in counted(executor, layout, traced):
            draft = configuration.draft
            assert draft is not None, "the grid holds drafts"
            assert draft.elements, "of models that are here"
            bpw = (draft.predicted_tensor_bytes or 0) * 8 / draft.elements
            points.append(found.points)
            within &= abs(found.points) <= MOST_POINTS and found.theirs[0] >= least_drafted
            lines.append(f"  {draft.name:8} {bpw:5.2f} bpw: {found}")
    mean = float(np.mean(points))
    within &= abs(mean) <= MOST_MEAN
    head = (
        f"replay of what live runs emitted, n_max 8: at most {MOST_POINTS} points each, "
        f"{MOST_MEAN} in the mean"
    )
    return Study((head, *lines, f"  mean {mean:+.2f} points"), within)


def counted(
    executor: Executor,
    layout: Layout,
    traced: Layout,
    kept: tuple[str, ...] | None = None,
    *,
    exact: bool = False,
) -> Iterator[tuple[Configuration, Counted]]:
    """Every candidate of ``layout`` (of the drafts in ``kept``) after its live runs, what these
    emitted being replayed; ``traced`` is the same recipe's layout by replay."""
    assert traced.forecast is not None, "laid out by replay"
    drafts = [d for d in layout.drafts if kept is None or d.name in kept]
    executor.run(step for draft in drafts for step in draft.making() if step.kind in MAKING)
    executor.run([traced.forecast.trace])
    recorded = TraceFile(executor.outcomes.artifact(traced.forecast.trace).file(TRACE_FILE))
    replies = {reply.head.id: reply for reply in recorded}
    for configuration in layout.grid:
        draft, settings = configuration.draft, configuration.key.settings
        assert draft is not None, "the grid holds drafts"
        assert settings is not None, "so do they"
        if draft not in drafts:
            continue
        dealing = DealStep((configuration.live,), 0, together=False)
        block = executor.run([dealing]).result(dealing)
        assert block is not None, "it ran"
        step = next(d for d in traced.forecast.drafts if d.draft.name == draft.name)
        model = draft.model
        file = (
            model.path
            if isinstance(model, Source)
            else executor.outcomes.artifact(model).file(MODEL_FILE)
        )
        yield (
            configuration,
            _recount(executor, step, traced.forecast, file, block.runs, replies, settings, exact),
        )


def _recount(
    executor: Executor,
    draft: DraftForecast,
    plan: ForecastPlan,
    model: Path,
    live: list[PromptRun],
    replies: Mapping[str, Reply],
    settings: DraftSettings,
    exact: bool,
) -> Counted:
    profile = PROFILES[plan.engine.flavour]
    same = 0
    ours, theirs = [], []
    with Worker.open(plan.engine, Supervisor(executor.logs / "counts")) as worker:
        info = worker.load(model_load(plan.engine, model, draft.replay.args, plan.context))
        slot = min(plan.context, info.context_train)
        for run in live:
            prompt = replies[run.id].prompt
            known = emitted_tokens(run, replies[run.id], worker, info, settings.n_max)
            if known is None:
                continue
            tokens = np.array(known, np.int32)
            rolled = settings.n_max if settings.p_min > 0 else 0
            found = worker.replay(
                prompt, tokens, rollout_steps=rolled, rollout_stop_below=settings.p_min
            )
            positions = positions_of(
                found,
                tokens,
                prompt=len(prompt),
                reply=len(tokens),
                eog=info.eog,
                rollout_floor=settings.p_min,
                n_predict=plan.n_predict,
                context=slot,
            )
            simulated = simulate(positions, settings, profile)
            ours.append((simulated.draft_n, simulated.draft_n_accepted))
            theirs.append((run.draft_n or 0, run.draft_n_accepted or 0))
            if exact:
                shapes = worker.live_shapes(
                    prompt,
                    tokens,
                    profile=profile,
                    n_max=settings.n_max,
                    p_min=settings.p_min,
                    n_predict=plan.n_predict,
                    server_context=slot,
                )
                same += (shapes.draft_n, shapes.draft_n_accepted) == theirs[-1]
    (drafted, accepted), (tried, agreed) = np.sum(theirs, axis=0), np.sum(ours, axis=0)
    error = acceptance_deviation(theirs, ours)
    assert error is not None, "every run drafts"
    return Counted(
        (int(drafted), int(accepted)),
        (int(tried), int(agreed)),
        100 * error,
        sum(a == b for a, b in zip(ours, theirs, strict=True)),
        len(ours),
        same if exact else None,
    )
