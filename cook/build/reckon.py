"""How long a step takes where none like it was timed: from what it asks of the machine.

A step reads models into memory, decodes tokens one by one (which reads the model's weights each
time), reads batches of text (which computes with them), or rewrites files. Counted on a reference
machine that makes nominal seconds. What a machine makes of them is learned from every step that
it has run: seconds over nominal seconds, by kind. Before any, from a probe of its memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cook.engines.threads import engine_threads
from cook.errors import CookError
from cook.formats.headers import header, header_if_there
from cook.formats.output_head import head_of
from cook.formats.vocabulary import Vocabulary, read_vocabulary, tokens_about
from cook.graph.step import Input, Source, Step
from cook.graph.store import Artifact
from cook.prompts.prompt_set import Prompt
from cook.recipe.active import active_bytes
from cook.steps.control import ENOUGH, ControlStep
from cook.steps.convert import ConvertStep
from cook.steps.corpus import TraceCorpusStep
from cook.steps.curve import (
    MOST_REPEATS,
    MOST_ROUNDS,
    REPEATS,
    SLOW_S,
    STEADY_S,
    WINDOWS,
    CurveStep,
    grid_of,
)
from cook.steps.deal import DealStep
from cook.steps.differences import LOOKED_UP, CompareStep
from cook.steps.head import HeadStep
from cook.steps.imatrix import ImatrixStep
from cook.steps.live import LiveStep
from cook.steps.memory import MemoryStep
from cook.steps.perplexity import DivergenceStep, PerplexityStep
from cook.steps.quantize import QuantizeStep
from cook.steps.recount import REQUESTS, SelfCheckStep
from cook.steps.reduce import ReduceStep
from cook.steps.replay import ReplayStep
from cook.steps.slot_curve import SlotCurveStep
from cook.steps.trace import RecordedTraceStep, Trace, TraceStep

# The reference machine: a few cores of a server with two channels of memory.
START_S = 0.4
"""A program started, its libraries loaded."""
LOAD_BYTES_S = 1.0e9
READ_BYTES_S = 8.0e9
"""Weights read to decode one token."""
DECODE_S = 4e-4
"""Of one decode, whatever the model: graphs, threads, sampling, the request."""
COMPUTE_BYTES_S = 40e9
"""Weights, two bytes each whatever their type, times tokens, of text read in batches."""
COPY_BYTES_S = 300e6
FLOPS = 60e9
"""Of a product of matrices, beside :data:`COMPUTE_BYTES_S`."""
SECONDS_A_WEIGHT = (
    ("iq1", 10e-6),
    ("iq2", 1e-6),
    ("iq3", 0.4e-6),
    ("iq4", 0.3e-6),
    ("_kt", 1.5e-6),
)
"""To quantize with importance: types whose values are searched for, by a part of their names."""
OTHER_SECONDS_A_WEIGHT = 0.05e-6

FASTER = 4.0
"""Times that a machine may be as fast as the reference: a batch is repeated as on such a one, since
to reckon a repeat too many is better than three too few."""
BYTES_A_TOKEN = 4
"""Of text, where no vocabulary tells."""
SAMPLED_CHARACTERS = 16_384
"""Of all prompts together, whose tokens are estimated by the vocabulary."""
TOKENS_A_CYCLE = 2.2
CHUNK_TOKENS = 512
WIDE = 0.1
"""A verification of n more tokens takes so much longer for each, of a single decode."""
PROBE_BYTES = 64 << 20
"""Of memory, over all cores: more than most caches, and less than a plan takes itself."""
PROBE_ROWS = 768
PROBE_S = 0.05
PROBES = 3
"""The fastest counts: what else runs at the moment only slows a probe down."""


@dataclass(frozen=True)
class Effort:
    """What a step asks for. ``models``: bytes of each model that is loaded, which of steps that
    share a worker the first one does (:mod:`cook.engines.worker.kept_workers`); ``read_bytes`` of
    weights, for ``decodes``; ``computed_bytes``: :func:`_computed` times tokens read in batches;
    ``quantizing_s`` on the reference machine; ``copied_bytes`` of files."""

    models: tuple[float, ...] = ()
    read_bytes: float = 0.0
    decodes: float = 0.0
    computed_bytes: float = 0.0
    quantizing_s: float = 0.0
    copied_bytes: float = 0.0

    @property
    def nominal_s(self) -> float:
        """Seconds on the reference machine."""
        return self.seconds(1.0, 1.0)

    def seconds(self, memory: float, processor: float) -> float:
        """Seconds on a machine whose memory and processor take so many times as long."""
        return (
            sum(self.models) / LOAD_BYTES_S
            + self.read_bytes / READ_BYTES_S
            + self.copied_bytes / COPY_BYTES_S
        ) * memory + (
            START_S * max(len(self.models), 1)
            + self.decodes * DECODE_S
            + self.computed_bytes / COMPUTE_BYTES_S
            + self.quantizing_s
        ) * processor


def effort_of(step: Step[Any]) -> Effort | None:
    """None where it cannot be known: a size that no header tells."""
    rule = _RULES.get(type(step))
    return rule(step) if rule is not None else None


def nominal_seconds(step: Step[Any]) -> float | None:
    """What is remembered of a step beside the seconds that it took."""
    effort = effort_of(step)
    return effort.nominal_s if effort is not None else None


@dataclass(frozen=True)
class MachinePace:
    """Seconds that this machine takes for a nominal second, by kind of step."""

    kinds: Mapping[tuple[str, str | None], float]
    """(kind, digest of the engine) -> median over the steps that were run here."""
    machine: tuple[float, float]
    """Memory's and processor's, of kinds that were not: the median of all that were, or probed."""
    probed: bool

    @classmethod
    def of(cls, history: Sequence[Artifact]) -> MachinePace:
        found: dict[tuple[str, str | None], list[float]] = {}
        for artifact in history:
            if artifact.nominal_s:
                engine = artifact.key_parts.get("engine") or {}
                ratio = artifact.seconds / artifact.nominal_s
                found.setdefault((artifact.kind, engine.get("digest")), []).append(ratio)
                found.setdefault((artifact.kind, None), []).append(ratio)
        kinds = {key: median(ratios) for key, ratios in found.items()}
        if not kinds:
            probed = READ_BYTES_S / memory_bytes_s(), FLOPS / processor_flops()
            return cls({}, probed, probed=True)
        every = median(kinds[key] for key in kinds if key[1] is None)
        return cls(kinds, (every, every), probed=False)

    def seconds(self, step: Step[Any], effort: Effort | None) -> tuple[float | None, str | None]:
        """About how long ``step``, which asks for ``effort``, takes here, and from what that is
        known; or None, and why."""
        if effort is None:
            return None, "its size is known only when its inputs are there"
        engine = (step.key_parts["engine"] or {}).get("digest")
        for key, told in (
            ((step.kind, engine), "as this engine's here"),
            ((step.kind, None), "as another engine's here"),
        ):
            if key in self.kinds:
                return effort.nominal_s * self.kinds[key], f"{told}, by size"
        how = "by size and a probe of this machine" if self.probed else "by size and other steps"
        return effort.seconds(*self.machine), how


def memory_bytes_s() -> float:
    """Bytes a second that all cores together read from memory, as it is now."""
    cores = engine_threads()
    with ThreadPoolExecutor(cores) as pool:
        blocks = list(pool.map(np.ones, [PROBE_BYTES // cores // 8] * cores))
        rounds, seconds = _measured(lambda: list(pool.map(np.sum, blocks)))
    return rounds * sum(block.nbytes for block in blocks) / seconds


def processor_flops() -> float:
    """Floating-point operations a second of a product of matrices, likewise."""
    matrix = np.ones((PROBE_ROWS, PROBE_ROWS), np.float32)
    rounds, seconds = _measured(lambda: matrix @ matrix)
    return rounds * 2 * PROBE_ROWS**3 / seconds


def _measured(work: Callable[[], object]) -> tuple[int, float]:
    """Times that ``work`` was done in about ``PROBE_S``, and the seconds that took."""
    work()
    found = []
    for _ in range(PROBES):
        started, rounds = time.monotonic(), 0
        while (seconds := time.monotonic() - started) < PROBE_S:
            work()
            rounds += 1
        found.append((max(rounds, 1), seconds))
    return max(found, key=lambda one: one[0] / one[1])


def model_bytes(model: Input) -> float | None:
    return float(model.size_bytes) if isinstance(model, Source) else _predicted(model)


def _predicted(step: Step[Any]) -> float | None:
    size = step.predicted_bytes()
    return float(size) if size else None


def _touched(model: Input) -> float:
    """Bytes of weights that one token is computed with; of a quant by its source's shares, of a
    model made of another by the other's."""
    size = model_bytes(model)
    assert size is not None, "asked only of models of a known size"
    source = _source_of(model)
    return size * (_share_used(source.path) if isinstance(source, Source) else 1.0)


def _computed(model: Input) -> float:
    """What a batch computes with for each token: two bytes a weight. A quant saves reading, not
    arithmetic: as many products are made of it as of its source."""
    touched, source = _touched(model), _source_of(model)
    weights = _weights(source.path) if isinstance(source, Source) else 0
    if not weights or not isinstance(source, Source):
        return touched
    whole = model  # without layers left out
    while isinstance(whole, ReduceStep):
        whole = whole.model
    kept = touched / (_touched(whole) or 1)
    return 2.0 * weights * _share_used(source.path) * kept


def _source_of(model: Input) -> Input:
    """The file that ``model`` is made of, where it is made of one."""
    while isinstance(model, ReduceStep | HeadStep):
        model = model.model
    return model.source if isinstance(model, QuantizeStep) else model


@cache
def _share_used(path: Path) -> float:
    try:
        active = active_bytes(header(path))
    except CookError:
        return 1.0
    return active.read_bytes / active.size_bytes if active and active.read_bytes else 1.0


def _prompt_lengths(trace: Trace) -> Sequence[float]:
    """Tokens of every prompt, by its text; of a recording that has no texts a guess."""
    if isinstance(trace, TraceStep):
        return _lengths(trace.prompts, trace.target)
    return [float(CHUNK_TOKENS)] * max(trace.replies, 1)


def _lengths(prompts: tuple[Prompt, ...], model: Input) -> tuple[float, ...]:
    """Tokens of each prompt, about, by the vocabulary of ``model``."""
    source = _source_of(model)
    return _counted(prompts, source.path if isinstance(source, Source) else None)


@lru_cache(maxsize=64)
def _counted(prompts: tuple[Prompt, ...], model: Path | None) -> tuple[float, ...]:
    each = max(SAMPLED_CHARACTERS // max(len(prompts), 1), 64)
    sample = "\n".join(p.text[:each] for p in prompts[: SAMPLED_CHARACTERS // each])
    a_token = _bytes_a_token(model, sample) if model is not None else BYTES_A_TOKEN
    return tuple(max(len(p.text.encode()) / a_token, 1.0) for p in prompts)


def _bytes_a_token(model: Path, sample: str) -> float:
    vocabulary = _vocabulary(model)
    tokens = tokens_about(vocabulary, sample) if vocabulary is not None else None
    return len(sample.encode()) / tokens if tokens else BYTES_A_TOKEN


@lru_cache(maxsize=2)
def _vocabulary(model: Path) -> Vocabulary | None:
    try:
        return read_vocabulary(header(model))
    except CookError:
        return None


def _prompt_tokens(trace: Trace, wanted: Sequence[str] | None = None) -> float:
    lengths = _prompt_lengths(trace)
    share = 1.0 if wanted is None else len(wanted) / len(lengths)
    return sum(lengths) * share


def _trace(step: TraceStep) -> Effort:
    size, touched, tokens = float(step.target.size_bytes), _touched(step.target), step.work()
    width = step.batch_width
    # Each token of a batch may ask for experts of its own.
    read = max(min(size, width * touched), (1 + WIDE * (width - 1)) * touched)
    return Effort((size,), tokens * read, tokens, _prompt_tokens(step) * _computed(step.target))


def _recorded(step: RecordedTraceStep) -> Effort:
    return Effort(copied_bytes=float(step.file.size_bytes))


def _replay(step: ReplayStep) -> Effort | None:
    size = model_bytes(step.draft)
    if size is None:
        return None
    touched, tokens = _touched(step.draft), step.work()
    drafted = 0.3 * tokens * step.rollout_steps  # behind each wrong token
    read = _prompt_tokens(step.trace, step.prompts) + tokens
    return Effort((size,), drafted * touched, drafted, read * _computed(step.draft))


def _curve(step: CurveStep) -> Effort | None:
    """Batches of every width at a few depths, and prompts of a few lengths."""
    size = model_bytes(step.model)
    if size is None:
        return None
    touched, computed = _touched(step.model), _computed(step.model)
    lengths = [round(tokens) for tokens in _prompt_lengths(step.trace)]
    ubatch = step.args.filled().ubatch or 1
    grid = grid_of(lengths, [n + step.trace.max_tokens for n in lengths], ubatch)
    one_s = touched / READ_BYTES_S / FASTER
    quick = one_s < STEADY_S / REPEATS  # then repeats fill a stated time
    repeats = 2 if one_s >= SLOW_S else 2 + (MOST_REPEATS if quick else REPEATS) + 1
    wide = sum(1 + WIDE * (width - 1) for width in step.widths)
    # At a depth that takes long to read, batches are timed again for as long.
    round_s = WINDOWS * repeats * wide * touched / READ_BYTES_S
    reading_s = [depth * computed / COMPUTE_BYTES_S for depth in grid.depths if depth > ubatch]
    again = sum(min(MOST_ROUNDS, max(1, int(s / round_s))) - 1 for s in reading_s)
    places = (len(grid.depths) + again) * WINDOWS
    batches = wide * places * repeats
    # One long text is read, and short prompts by themselves.
    long, short = ([s for s in grid.stops if (s > ubatch) is beyond] for beyond in (True, False))
    read = float(max(long, default=0) + max(short, default=0))
    for length in (n for n in grid.prompts if n <= ubatch):
        slow = length * computed / COMPUTE_BYTES_S / FASTER >= SLOW_S
        read += length * (1 if slow else 1 + WINDOWS * (REPEATS + 1))
    decodes = len(step.widths) * places * repeats
    args = step.trace.args if isinstance(step.trace, TraceStep) else None
    first = step.verifies and step.turn == 0 and step.args != args
    return Effort((size,) if first else (), batches * touched, decodes, read * computed)


def _slot_curve(step: SlotCurveStep) -> Effort | None:
    """Batches of every width and number of slots at two depths."""
    size = model_bytes(step.model)
    if size is None:
        return None
    touched, places = _touched(step.model), 2 * WINDOWS
    repeats = 2 if touched / READ_BYTES_S / FASTER >= SLOW_S else 2 + MOST_REPEATS
    wide = [1 + WIDE * (s * width - 1) for s in step.sequences for width in step.widths]
    lengths = _prompt_lengths(step.trace)
    depth = step.sequences[-1] * (min(lengths) + max(lengths) + step.trace.max_tokens)
    decodes = len(wide) * places * repeats
    read = depth * _computed(step.model)
    return Effort((), sum(wide) * places * repeats * touched, decodes, read)


def _live(step: LiveStep) -> Effort | None:
    target = model_bytes(step.target)
    draft = model_bytes(step.draft) if step.draft is not None else 0.0
    if target is None or draft is None:
        return None
    tokens = step.work()
    prompts = sum(_lengths(step.prompts, step.target))
    wide, computed = _touched(step.target), prompts * _computed(step.target)
    if step.draft is None or step.settings is None:
        return Effort((target,), tokens * wide, tokens, computed)
    small, n_max = _touched(step.draft), step.settings.n_max
    cycles = tokens / TOKENS_A_CYCLE
    read = cycles * (wide * (1 + WIDE * n_max) + n_max * small)
    computed += prompts * _computed(step.draft)
    return Effort((target, draft), read, cycles * (1 + n_max), computed)


def _deal(step: DealStep) -> Effort | None:
    """Every server loads and answers all prompts; files that several map are read once."""
    each = [_live(server) for server in step.servers]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    models = {node.key: model_bytes(node) or 0.0 for node in step.inputs().values()}
    return Effort(
        tuple(models.values()),
        sum(one.read_bytes for one in known),
        sum(one.decodes for one in known),
        sum(one.computed_bytes for one in known),
    )


def _compare(step: CompareStep) -> Effort | None:
    """Some of the replies differ: they are looked up, and a few controlled."""
    target = model_bytes(step.target)
    if target is None:
        return None
    dealt, most = tuple(step.live.prompts.values()), step.live.live.max_tokens
    prompts = [tokens + most for tokens in _lengths(dealt, step.target)]
    wide = _touched(step.target)
    # Two thirds of what may be: replies are alike as often as not.
    read = 0.7 * sum(sorted(prompts)[:LOOKED_UP]) * _computed(step.target)
    return Effort((), 60 * wide, 60, read)


def _control(step: ControlStep) -> Effort:
    wide = _touched(step.target)
    tokens = min(float(ENOUGH), step.trace.work())
    replies = max(tokens / max(step.trace.max_tokens, 1), 1.0)
    prompts = sum(sorted(_prompt_lengths(step.trace))[: math.ceil(replies)])
    batches = tokens / step.width
    singly = tokens if isinstance(step.trace, TraceStep) and step.trace.batch_width > 1 else 0.0
    read = batches * (1 + WIDE * step.width) + singly
    return Effort((), read * wide, batches + singly, prompts * _computed(step.target))


def _recount(step: SelfCheckStep) -> Effort | None:
    size = model_bytes(step.draft)
    if size is None:
        return None
    touched = _touched(step.draft)
    requests = min(REQUESTS, len(step.live.prompts))
    tokens = requests * step.live.live.max_tokens / TOKENS_A_CYCLE * (step.settings.n_max + 1)
    computed = requests * CHUNK_TOKENS * _computed(step.draft)
    return Effort((), tokens * touched, tokens, computed)


def _read_corpus(model: Input, chunks: int | None, corpus: Input, context: int) -> Effort | None:
    size = model_bytes(model)
    text = corpus.size_bytes if isinstance(corpus, Source) else corpus.predicted_bytes()
    if size is None or not text:
        return None
    tokens = text / BYTES_A_TOKEN
    if chunks is not None:
        tokens = min(tokens, float(chunks * context))
    return Effort((size,), 0.0, tokens / CHUNK_TOKENS, tokens * _computed(model))


def _quantize(step: QuantizeStep) -> Effort:
    model = header_if_there(step.source.path)
    copied = {tensor.tensor for tensor in step.published}
    seconds = sum(
        tensor.elements * _seconds_a_weight(type_name)
        for name, type_name in step.expected
        if model is not None and name not in copied and (tensor := model.find(name)) is not None
    )
    return Effort(quantizing_s=seconds, copied_bytes=float(step.source.size_bytes))


def _head(step: HeadStep) -> Effort:
    """Its one tensor quantized, and the rest copied and hashed."""
    file = header_if_there(step.model.path)
    weights = head_of(file).elements if file is not None else 0
    return Effort(
        quantizing_s=weights * _seconds_a_weight(step.head_type),
        copied_bytes=float(step.disk_bytes() or 0),
        read_bytes=step.work(),
    )


def _reduce(step: ReduceStep) -> Effort:
    """Beside a copy of the file, or of its header, its bytes are read once to be hashed."""
    return Effort(copied_bytes=float(step.disk_bytes() or 0), read_bytes=step.work())


@cache
def _seconds_a_weight(tensor_type: str) -> float:
    name = tensor_type.lower()
    known = (seconds for part, seconds in SECONDS_A_WEIGHT if part in name)
    return next(known, OTHER_SECONDS_A_WEIGHT)


def _weights(path: Path) -> int:
    """0 of a file that is not there yet or is no model."""
    model = header_if_there(path)
    return sum(tensor.elements for tensor in model.tensors) if model is not None else 0


def _memory(step: MemoryStep) -> Effort | None:
    size = model_bytes(step.model)
    return Effort((size,)) if size is not None else None


_RULES: Mapping[type, Callable[[Any], Effort | None]] = {
    TraceStep: _trace,
    RecordedTraceStep: _recorded,
    TraceCorpusStep: lambda step: Effort((float(step.model.size_bytes),)),
    ReplayStep: _replay,
    CurveStep: _curve,
    SlotCurveStep: _slot_curve,
    LiveStep: _live,
    DealStep: _deal,
    CompareStep: _compare,
    ControlStep: _control,
    SelfCheckStep: _recount,
    ImatrixStep: lambda s: _read_corpus(s.model, s.chunks, s.corpus, s.context),
    PerplexityStep: lambda s: _read_corpus(s.model, s.chunks, s.corpus, s.context),
    DivergenceStep: lambda s: _read_corpus(s.model, s.base.chunks, s.base.corpus, s.base.context),
    QuantizeStep: _quantize,
    HeadStep: _head,
    ReduceStep: _reduce,
    ConvertStep: lambda s: Effort(copied_bytes=s.work()),
    MemoryStep: _memory,
}
