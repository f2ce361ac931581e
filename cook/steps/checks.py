"""Steps: are the counts and the output of live runs those of the target alone?

*Recount* (`selfcheck`): a live run recounted from its own tokens. Counts are called exact only
where this has passed (docs/internals/scoring.md#recount). The requests are those that were run live
anyway. ik returns no token ids, and leaves out of the text some that it counted: there only replies
are recounted whose text is that of the trace, or has as many tokens as the server counted. Even so
a request may differ there that we count rightly: ik's draft keeps what its cache holds of the
request before wherever tokens match by chance, though computed behind another text.

*Compare*: where drafting changed the output, how near a tie was it? Greedy output under batched
verification can differ from single decoding, since kernels differ by batch width
(docs/internals/scoring.md#same-output-as-without-a-draft). So a difference is not called wrong: it
is reported with its first position and the gap between the two tokens, as the target itself,
decoding without a draft, sees them after the same tokens. Under greedy decoding that is the
difference of their logits; above temperature 0 the same draw gives another token where
probabilities shift, however far apart the two tokens' are, so that it is the shift that takes. What
a difference costs is bounded: it is looked up once, a few of each kind are controlled, and there
the prompt is read in whole batches, only the last tokens at the width of a verification.

*Control*: what batch width alone does to the target, which reads its own trace again, without a
draft, prompts in whole batches and replies in batches as wide as a verification; where the trace
was recorded in wide batches itself, a token at a time, too. Where its log-probabilities differ from
those of single decoding, only kernels differ. Twice the 99th percentile of that difference is the
line below which a changed token is a near tie, measured on this engine instead of assumed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.messages import ModelInfo, Replay
from cook.engines.worker.worker import Tokens, Worker
from cook.errors import PrerequisiteError, StepError
from cook.formats.arrays import Floats32, Ids
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, TraceFile
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.record.record import (
    CompareOutcome,
    ControlOutcome,
    Difference,
    OutputCheck,
    PromptRun,
    RecountOutcome,
)
from cook.scoring.ngram import NgramRequest, NgramServer, Stage
from cook.scoring.simulate import Profile, positions_of, simulate
from cook.steps.deal import Dealt
from cook.steps.head_replay import WAVE, head_positions
from cook.steps.live import WARM_UP_TOKENS, LiveOutcome
from cook.steps.trace import Trace, read_trace
from cook.steps.work import (
    CHUNK_TOKENS,
    TOKENS_A_CYCLE,
    Phase,
    computed_bytes,
    head_bytes,
    model_bytes,
    model_path,
    prompt_tokens,
    read_bytes,
    trunk_bytes,
    wide,
)
from cook.trace.chain import Draws
from cook.trace.rendering import render_prompts

NEAR_TIE_GAP = 0.15
"""Logit gap up to which batched verification is known to flip greedy choices.

Used only where no control run measured this engine's own: the largest gap reported for pure
kernel noise (docs/internals/scoring.md#same-output-as-without-a-draft).
"""


@dataclass(frozen=True)
class LiveRequest:
    """What a server was asked, up to ``n_predict`` tokens, and said; ``run`` is what it counted,
    None where that was not kept."""

    prompt: Tokens
    tokens: tuple[int, ...]
    n_predict: int
    run: PromptRun | None = None

    @property
    def counts(self) -> tuple[int, int] | None:
        """(drafted, accepted), where they were kept."""
        return self.run.counted if self.run else None


def check_counts(
    worker: Worker,
    draft: ModelInfo,
    replies: Sequence[LiveRequest],
    setting: DraftSettings,
    profile: Profile,
    *,
    context: int,
    batch: int | None = None,
) -> RecountOutcome:
    """Recount ``replies`` with the loaded ``draft``. ``context``: the server's; ``batch`` its -b.

    Counts are called exact only where this has passed for the engine build at hand. The worker must
    have loaded the draft as the server did: context, ubatch, threads, KV types.
    """
    slot = min(context, draft.context_train)
    exact = 0
    totals = np.zeros((2, 2), dtype=np.int64)
    for reply in replies:
        live = reply.counts
        assert live is not None, "only what was counted is recounted"
        cycles = worker.live_shapes(
            reply.prompt,
            reply.tokens,
            profile=profile,
            n_max=setting.n_max,
            n_min=setting.n_min,
            p_min=setting.p_min,
            n_predict=reply.n_predict,
            server_context=slot,
            width=batch,
        )
        replay = worker.replay(
            reply.prompt,
            reply.tokens,
            rollout_steps=setting.n_max if setting.p_min > 0 else 0,
            rollout_stop_below=setting.p_min,
        )
        positions = positions_of(
            replay,
            np.array(reply.tokens, np.int32),
            prompt=len(reply.prompt),
            reply=len(reply.tokens),
            eog=draft.eog,
            rollout_floor=setting.p_min,
            n_predict=reply.n_predict,
            context=slot,
        )
        ours = simulate(positions, setting, profile)
        exact += (cycles.draft_n, cycles.draft_n_accepted) == live
        totals += [live, (ours.draft_n, ours.draft_n_accepted)]
    return RecountOutcome(len(replies), exact, *totals.ravel().tolist())


def output_check(
    outcome: CompareOutcome,
    control: ControlOutcome | None = None,
    not_controlled: str | None = None,
) -> OutputCheck:
    """Class each difference as a near tie, material, or unknown (no gap could be had).

    ``not_controlled``: why there is no ``control``.
    """
    line = control.near_tie_gap if control is not None else NEAR_TIE_GAP
    gaps = [abs(d.gap) if d.gap is not None else d.gap_at_least for d in outcome.differences]
    known = [g for g in gaps if g is not None]
    near = sum(g <= line for g in known)
    tried = [d.without_draft for d in outcome.differences if d.without_draft is not None]
    return OutputCheck(
        replies=outcome.replies,
        identical=outcome.identical,
        near_ties=near,
        material=len(known) - near,
        unknown=len(gaps) - len(known),
        near_tie_gap=line,
        largest_gap=max(known, default=None),
        first_positions=tuple(d.position for d in outcome.differences),
        without_draft=sum(tried),
        without_draft_tried=len(tried),
        gap_is_measured=control is not None,
        control=control,
        not_controlled=not_controlled or outcome.not_controlled,
    )


REQUESTS = 8
"""Most live requests recounted at the server's own batch shapes, which costs about a live run."""
HEAD_READ_TOKENS = 16_384
"""Tokens of prompts after which a head's recount begins no other request, since its target reads
them, too. One request is recounted in any case."""
N_PROBS = 64
"""How many of the target's candidates to ask for when looking a rejected token up."""
LOOKED_UP = 12
"""Differences whose gap is looked up, those with the shortest texts: each reads one again."""
CONTROLLED = 3
"""Differences of a kind (near ties, wider gaps, unknown ones) that are held against batch width."""
WIDE_TOKENS = 64
"""Tokens before a difference that the control reads at the width of a verification."""
CONTROL_S = 900.0
"""Seconds that one difference may take to be controlled."""
REPLIES = 12
"""Most replies that are read again, those with the shortest prompts: these cost, and show
nothing."""
MIN_REPLY_TOKENS = 1_000
"""Tokens of replies that show a 99th percentile: no further prompt is read for more."""
REPLY_S = 900.0
"""Seconds that one reply may take."""


@dataclass(frozen=True)
class RecountStep(Step[RecountOutcome]):
    """Recount the first requests of ``live`` with its draft.

    ``trace`` gives the prompts' tokens. No request is recounted where no reply's tokens are known.
    """

    engine: Engine
    name: str
    draft: Input
    args: ModelArgs
    settings: DraftSettings
    profile: Profile
    trace: Trace
    live: Dealt

    kind: ClassVar[str] = "selfcheck"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 5
    """2: ik's text tokenized again. 3: of what was dealt. 4: whole prompts in whole batches. 5: of
    heads, each prompt is read once, and long ones are bounded."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"recount of live requests {self.name} ({self.engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        return {**super().inputs(), **self.live.inputs("live")}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "settings": asdict(self.settings),
            "profile": str(self.profile),
            "requests": REQUESTS,
            "candidate": self.live.name,
            **({"read_tokens": HEAD_READ_TOKENS} if self.live.live.head is not None else {}),
        }

    def cost(self) -> Cost | None:
        size = model_bytes(self.draft)
        if size is None:
            return None
        requests, width = min(REQUESTS, len(self.live.prompts)), self.settings.n_max + 1
        cycles = requests * self.live.live.max_tokens / TOKENS_A_CYCLE
        tokens, read_tokens = cycles * width, requests * CHUNK_TOKENS
        read, computed = tokens * read_bytes(self.draft), read_tokens * computed_bytes(self.draft)
        if self.live.live.head is not None:
            target = self.live.live.target
            size += trunk_bytes(target) or 0.0
            read = tokens * head_bytes(self.draft) + cycles * read_bytes(target) * wide(width)
            computed = read_tokens * computed_bytes(target)
        return Cost((), read, tokens, computed, memory_bytes=size)

    def run(self, bench: Workbench) -> RecountOutcome:
        trace = read_trace(bench, self.trace)
        recorded = {reply.head.id: reply for reply in trace}
        if self.live.live.head is not None:
            return self._of_head(bench, recorded)
        runs = [run for run in self.live.read(bench) if run.id in recorded]
        path = model_path(bench, self.draft)
        load = model_load(self.engine, path, self.args, self.live.live.context)
        with bench.workers.loaded(self.engine, load) as (worker, info):
            tokens = [
                emitted_tokens(run, recorded[run.id], worker, info, self.settings.n_max)
                for run in runs
            ]
            replies = [
                LiveRequest(recorded[run.id].prompt, known, self.live.live.max_tokens, run)
                for run, known in zip(runs, tokens, strict=True)
                if known is not None
            ]
            found = check_counts(
                worker,
                info,
                replies[:REQUESTS],
                self.settings,
                self.profile,
                context=self.live.live.context,
            )
        return replace(found, passed_over=len(runs) - len(replies))

    def _of_head(self, bench: Workbench, recorded: Mapping[str, Reply]) -> RecountOutcome:
        """Each server from its first line on: a request begins on what the one before left, and
        n-grams before the head keep what they saw."""
        live, settings, path = self.live.live, self.settings, model_path(bench, self.draft)
        longest = max(settings.n_max, live.ngram.longest if live.ngram is not None else 0)
        target = model_load(
            *(self.engine, model_path(bench, live.target), live.target_args, live.context),
            outputs=longest + 1,
        )
        head = head_load(self.engine, path, self.args, live.context, WAVE, settings.n_max)
        counted = exact = read = 0
        totals = np.zeros((2, 2), dtype=np.int64)
        with bench.workers.loaded(self.engine, replace(target, gives_rows=True)) as (worker, info):
            context = min(live.context, info.context_train)

            def stage(of: NgramServer | None, request: LiveRequest) -> Stage | None:
                if of is None:
                    return None
                prompt, tokens = (np.array(t, np.int32) for t in (request.prompt, request.tokens))
                limits = (request.n_predict, context)
                return of.begin(NgramRequest(prompt, tokens, len(tokens), info.eog, *limits))

            def server() -> NgramServer | None:
                return NgramServer(live.ngram, self.engine.flavour) if live.ngram else None

            worker.load(head, onto=True)
            for outcome in self.live.stored(bench):
                before: Floats32 | None = None
                theirs, ours = server(), server()
                for request in requests_of(outcome, recorded, live.max_tokens):
                    if counted == REQUESTS or (counted and read >= HEAD_READ_TOKENS):
                        break
                    text = request.prompt, request.tokens
                    counts, rows, left = worker.live_shapes_head(
                        *text,
                        before=before,
                        settings=settings,
                        n_predict=request.n_predict,
                        server_context=context,
                        first=stage(theirs, request),
                    )
                    found = worker.replay_head(
                        *(*text, worker.rows(*text, rows)),
                        before=before,
                        depth=settings.n_max,
                        floor=settings.p_min,
                    )
                    positions = head_positions(
                        found,
                        np.array(request.tokens, np.int32),
                        prompt=len(request.prompt),
                        reply=len(request.tokens),
                        eog=info.eog,
                        rollout_floor=settings.p_min,
                        n_predict=request.n_predict,
                        context=context,
                    )
                    run = simulate(positions, settings, self.profile, stage(ours, request))
                    before, read = left, read + len(request.prompt)
                    counted += request.run is not None
                    exact += request.counts == counts
                    if request.counts is not None:
                        totals += [request.counts, (run.draft_n, run.draft_n_accepted)]
        return RecountOutcome(counted, exact, *totals.ravel().tolist())


def requests_of(
    outcome: LiveOutcome, recorded: Mapping[str, Reply], max_tokens: int
) -> Iterator[LiveRequest]:
    """Everything that one server answered, in its order, as far as that is known.

    A request that was tried again got the same reply again; the counts of one are kept.
    """
    if outcome.warm_up is None:
        return
    yield LiveRequest(*outcome.warm_up, WARM_UP_TOKENS)
    runs = {run.id: run for run in outcome.runs}
    for order, id in outcome.asked:
        run = runs[id]
        if id not in recorded or run.tokens is None:
            return
        kept = run if run.order == order else None
        yield LiveRequest(recorded[id].prompt, run.tokens, max_tokens, kept)


def emitted_tokens(
    run: PromptRun, recorded: Reply, worker: Worker, info: ModelInfo, n_max: int
) -> tuple[int, ...] | None:
    """The tokens of a reply as the server counted them; None where they are not known.

    ik leaves out of the text what follows an end of generation or, at the limit, the first token
    of the last cycle, and counts it all the same: up to ``n_max`` tokens, which the trace knows
    where it says the same until there.
    """
    if run.tokens is not None:
        return run.tokens
    count = run.predicted_n + run.past_end
    traced = recorded.tokens[:count]
    if len(traced) == count:
        whole, least = (
            worker.detokenize(part, special=False).rstrip("\ufffd")
            for part in (traced, traced[:-n_max])
        )
        if whole.startswith(run.text) and run.text.startswith(least):
            return tuple(traced.tolist())
    tokens = worker.tokenize(run.text, add_special=False, parse_special=False)
    if worker.detokenize(tokens, special=False) != run.text:
        return None
    if run.stop == "eos" and len(info.eog) == 1:
        tokens = (*tokens, *info.eog)
    return tokens if len(tokens) == count else None


@dataclass(frozen=True)
class CompareStep(Step[CompareOutcome]):
    """Compare the replies that ``live`` was dealt with those of ``baseline``."""

    engine: Engine
    name: str
    target: Input
    target_args: ModelArgs
    context: int
    baseline: Dealt
    live: Dealt

    kind: ClassVar[str] = "compare"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 4
    """2: the same-width control; an ik reply cut at the limit is no difference. 3: gaps under the
    sampling chain; a bounded control that reads prompts in whole batches. 4: of what was dealt."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"compare output {self.name} ({self.engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        dealt = {**self.baseline.inputs("baseline"), **self.live.inputs("live")}
        return {**super().inputs(), **dealt}

    def params(self) -> Mapping[str, JsonValue]:
        return {"n_probs": N_PROBS, "names": [self.baseline.name, self.live.name]}

    def cost(self) -> Cost | None:
        """Some of the replies differ: they are looked up, and a few controlled."""
        target = trunk_bytes(self.target)
        if target is None:
            return None
        dealt, most = tuple(self.live.prompts.values()), self.live.live.max_tokens
        texts = sorted(tokens + most for tokens in prompt_tokens(dealt, self.target))
        # Two thirds of what may be: replies are alike as often as not.
        computed = 0.7 * sum(texts[:LOOKED_UP]) * computed_bytes(self.target)
        return Cost((), 60 * read_bytes(self.target), 60, computed, memory_bytes=target)

    def run(self, bench: Workbench) -> CompareOutcome:
        baseline = {run.id: run for run in self.baseline.read(bench)}
        others = {run.id: run for run in self.live.read(bench)}
        pairs = [(baseline[key], others[key]) for key in others if key in baseline]
        differing = [(a, b) for a, b in pairs if not _same(a, b)]
        differing.sort(key=lambda pair: pair[0].prompt_n + pair[0].predicted_n)
        differences: tuple[Difference, ...] = ()
        uncontrolled = None
        if differing:
            differences, uncontrolled = self._found(bench, differing)
        return CompareOutcome(len(pairs), len(pairs) - len(differing), differences, uncontrolled)

    def _found(
        self, bench: Workbench, differing: Sequence[tuple[PromptRun, PromptRun]]
    ) -> tuple[tuple[Difference, ...], str | None]:
        """What is known of each difference, and why none is held against batch width: a control
        that fails is reported, and fails nothing."""
        path = model_path(bench, self.target)
        asked = [self.baseline.prompts[a.id] for a, _ in differing]
        texts = [prompt.untemplated for prompt in asked]
        if self.baseline.live.chat:  # as the server saw them
            extra = self.target_args.extra
            texts = render_prompts(self.engine, path, extra, asked, bench.supervisor)
        try:
            load = model_load(self.engine, path, self.target_args, self.context)
            with bench.workers.loaded(self.engine, load, CONTROL_S) as (worker, _):
                seen = self._seen(worker, texts, differing)
                return tuple(self._controlled(worker, seen)), None
        except (PrerequisiteError, StepError) as error:  # no worker here, or none that can follow
            bench.workers.close()  # the server needs their memory
            job = ServerJob(path, target_args=self.target_args, context=self.context)
            with Server(self.engine, job, bench.supervisor) as server:
                seen = self._seen(server, texts, differing)
                return tuple(s.difference for s in seen), error.message.splitlines()[0]

    def _seen(
        self,
        target: Worker | Server,
        texts: Sequence[str],
        differing: Sequence[tuple[PromptRun, PromptRun]],
    ) -> Iterator[Seen]:
        for number, (text, (a, b)) in enumerate(zip(texts, differing, strict=True)):
            yield _first_difference(target, text, a, b, self._chain(), number < LOOKED_UP)

    def _chain(self) -> Sampling | None:
        """The chain that tokens are drawn under, with a server's defaults; None: greedy."""
        sampling = self.live.live.sampling
        return sampling.applied("server") if sampling.temperature else None

    def _controlled(self, worker: Worker, seen: Iterable[Seen]) -> Iterator[Difference]:
        """Each difference; of the first few of each kind, whether batch width alone makes it.

        Right after each is looked up, so that the worker still holds the text before it.
        """
        settings = self.live.live.settings
        n_max = settings.n_max if settings is not None else 0
        widths = sorted({2, n_max // 2 + 1, n_max + 1}, reverse=True)
        kinds: Counter[bool | None] = Counter()
        for one in seen:
            found = one.difference
            if n_max and found.baseline_token is not None and found.other_token is not None:
                kinds[one.near_tie] += 1
                if kinds[one.near_tie] <= CONTROLLED:
                    innocent = _changes_its_mind(worker, one, widths, self._chain())
                    found = replace(found, without_draft=innocent)
            yield found


def _likely(target: Worker | Server, text: Sequence[int]) -> Mapping[int, float]:
    """Log-probabilities of the :data:`N_PROBS` tokens that the target holds likeliest next."""
    if isinstance(target, Server):
        answer = target.complete(text, n_predict=1, temperature=0.0, seed=1, n_probs=N_PROBS)
        return {c.id: c.logprob for one in answer.probabilities[:1] for c in one.top_logprobs}
    found = target.replay(text, text[-1:], width=1, ahead=len(text) - 1, top=N_PROBS)
    ids, logits = _top(found)
    return dict(zip(ids.tolist(), (logits - found.logsumexp[0]).tolist(), strict=True))


def _top(found: Replay) -> tuple[Ids, Floats32]:
    """The likeliest tokens at the first position, and their logits."""
    assert found.top_ids is not None, "asked for"
    assert found.top_logits is not None, "asked for"
    return found.top_ids[0], found.top_logits[0]


def _same(a: PromptRun, b: PromptRun) -> bool:
    if a.tokens is not None and b.tokens is not None:
        return a.tokens == b.tokens
    if a.stop == b.stop == "limit":
        # ik leaves the last drafted tokens out of a text that the token limit ends.
        return a.text.startswith(b.text) or b.text.startswith(a.text)
    return a.text == b.text


@dataclass(frozen=True)
class Seen:
    """A difference, the text before it and the baseline's from there on; above temperature 0 also
    the draws that were there."""

    difference: Difference
    text: tuple[int, ...]
    after: tuple[int, ...]
    draws: Draws | None = None

    @property
    def near_tie(self) -> bool | None:
        """None where the gap is not known."""
        gap = self.difference.gap
        return None if gap is None else abs(gap) <= NEAR_TIE_GAP


def _changes_its_mind(
    worker: Worker, seen: Seen, widths: Sequence[int], chain: Sampling | None
) -> bool:
    """Whether the target alone changes its mind at one of ``widths``: prefers the other token or,
    above temperature 0, gives it by a draw that gave the baseline's."""
    ours, theirs = seen.difference.baseline_token, seen.difference.other_token
    assert ours is not None, "only differences with both tokens are chosen"
    assert theirs is not None, "only differences with both tokens are chosen"
    ahead = min(max(len(seen.text) - WIDE_TOKENS, 1), len(seen.text) - 1)
    for width in widths:
        # The batch goes on behind the place, as a verification does.
        found = worker.replay(
            seen.text,
            seen.after[:width],
            width=width,
            ahead=ahead,
            top=N_PROBS if chain else 0,
        )
        if chain is None:
            changed = int(found.argmax[0]) == theirs
        else:
            there = Draws.of(chain, *_top(found))
            changed = seen.draws is not None and seen.draws.may_become(ours, there, theirs)
        if changed:
            return True
    return False


def _first_difference(
    target: Worker | Server,
    prompt: str,
    a: PromptRun,
    b: PromptRun,
    chain: Sampling | None,
    looked_up: bool,
) -> Seen:
    # ik returns no ids, so its text is tokenized again.
    left, right = (
        run.tokens if run.tokens is not None else target.tokenize(run.text, add_special=False)
        for run in (a, b)
    )
    position = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    ours = left[position] if position < len(left) else None
    theirs = right[position] if position < len(right) else None
    text = (*target.tokenize(prompt, add_special=True), *left[:position])
    gap, at_least, draws = None, None, None
    if looked_up and ours is not None and theirs is not None:
        gap, at_least, draws = _gap(_likely(target, text), ours, theirs, chain)
    found = Difference(a.id, position, len(left), ours, theirs, gap, at_least)
    return Seen(found, text, left[position:], draws)


def _gap(
    known: Mapping[int, float], ours: int, theirs: int, chain: Sampling | None
) -> tuple[float | None, float | None, Draws | None]:
    """The two gaps of a :class:`Difference` by the log-probabilities that are ``known``, and under
    a ``chain`` the draws; None for what ``known`` does not show."""
    if ours not in known:
        return None, None, None
    if chain is None:
        if theirs in known:
            return known[ours] - known[theirs], None, None
        return None, known[ours] - min(known.values()), None
    if chain.repeat_penalty != 1.0 or not 0 < chain.whole_request()["top_k"] <= len(known):
        return None, None, None
    ids = sorted(known, key=lambda token: -known[token])
    draws = Draws.of(chain, np.array(ids, np.int32), np.array([known[i] for i in ids], np.float32))
    unbounded = theirs in known or ours not in draws.ranges
    return draws.gap(ours, theirs), None if unbounded else draws.gap_at_least(), draws


@dataclass(frozen=True)
class ControlStep(Step[ControlOutcome]):
    """``target`` over ``trace`` again, without a draft, ``width`` tokens at once."""

    engine: Engine
    target: Source
    args: ModelArgs
    trace: Trace
    width: int

    kind: ClassVar[str] = "control"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 4
    """2: prompts in whole batches, and no more replies than it takes. 3: all widths together.
    4: one, the served draft's."""
    optional: ClassVar[bool] = True
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"no-draft control at width {self.width} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "width": self.width,
            "replies": REPLIES,
            "enough": MIN_REPLY_TOKENS,
            **self.args.numerics(),
        }

    def cost(self) -> Cost:
        tokens = min(float(MIN_REPLY_TOKENS), self.trace.tokens)
        replies = max(tokens / max(self.trace.max_tokens, 1), 1.0)
        prompts = sum(sorted(self.trace.prompt_tokens())[: math.ceil(replies)])
        singly = 0.0 if self.trace.batch_width == 1 else tokens
        batches = tokens / self.width
        return Cost(
            read_bytes=(batches * wide(self.width + 1) + singly) * read_bytes(self.target),
            decodes=batches + singly,
            computed_bytes=prompts * computed_bytes(self.target),
            memory_bytes=trunk_bytes(self.target),
        )

    def run(self, bench: Workbench) -> ControlOutcome:
        trace = read_trace(bench, self.trace)
        load = model_load(self.engine, self.target.path, self.args, trace.header.context)
        chosen = _chosen(trace)
        found: list[tuple[Floats32, Floats32]] = []
        with bench.workers.loaded(self.engine, load, REPLY_S) as (worker, _):
            for name in chosen:
                reply = trace.reply(name)
                count = reply.head.emitted
                tokens, known = reply.tokens[:count], reply.known[:count]
                ahead = len(reply.prompt) - 1
                batched = worker.replay(reply.prompt, tokens, width=self.width, ahead=ahead)
                logp, margin, likeliest = reply.logp[:count], reply.margin[:count], tokens
                if trace.header.batch_width > 1:
                    single = worker.replay(reply.prompt, tokens, width=1, ahead=ahead)
                    logp, margin, likeliest = single.logq, single.margin, single.argmax
                changed = known & (batched.argmax != likeliest)
                greedy = not trace.header.sampler.temperature
                found.append((np.abs(batched.logq - logp)[known], margin[changed & greedy]))
                bench.advance(len(found) / len(chosen))
        every, flips = (np.concatenate(part) for part in zip(*found, strict=True))
        if not len(every) or not np.isfinite(every).all():
            raise StepError(f"{self.label}: the trace has no log-probabilities to compare with")
        return ControlOutcome(
            width=self.width,
            positions=len(every),
            flips=len(flips),
            p50=float(np.quantile(every, 0.5)),
            p99=float(np.quantile(every, 0.99)),
            largest=float(every.max()),
            largest_flip=float(flips.max()) if len(flips) else None,
        )


def _chosen(trace: TraceFile) -> list[str]:
    """The replies with the shortest prompts, as many as it takes, by their prompts' ids."""
    chosen: list[str] = []
    tokens = 0
    for head in sorted(trace.heads, key=lambda head: head.prompt_tokens)[:REPLIES]:
        if tokens < MIN_REPLY_TOKENS:
            chosen.append(head.id)
            tokens += head.emitted
    return chosen
