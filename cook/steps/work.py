"""How much work models and texts are, from headers alone: what the costs of steps are made of."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from cook.engines.base import UBATCH, ModelArgs
from cook.errors import CookError
from cook.formats.gguf import header, header_if_there
from cook.formats.heads import head_alone, head_of
from cook.formats.kv_cache import cache_size
from cook.formats.vocabulary import Vocabulary, read_vocabulary, tokens_about
from cook.graph.cost import Cost
from cook.graph.step import Input, Source
from cook.prompts.prompt_set import Prompt
from cook.recipe.active import active_bytes
from cook.steps.made_model import ModelStep
from cook.steps.splice_head import SpliceHeadStep

BYTES_A_TOKEN = 4
"""Of text, where no vocabulary is at hand."""
SAMPLED_CHARACTERS = 16_384
"""Of all prompts together, whose tokens are estimated by the vocabulary."""
TOKENS_A_CYCLE = 2.2
CHUNK_TOKENS = 512
COST_PER_WIDTH = 0.1
"""Each further token of a batch takes so much of a single decode."""


def model_bytes(model: Input) -> float | None:
    """Bytes of ``model``; None where no header says how large it will be."""
    if isinstance(model, Source):
        return float(model.size_bytes)
    size = model.predicted_bytes()
    return float(size) if size else None


def context_bytes(model: Input, args: ModelArgs, context: int, slots: int = 1) -> float:
    """Bytes of a server's context next to the weights of ``model``, ``slots`` of so many tokens:
    KV cache and recurrent state by the header (none where it does not say, see
    :mod:`cook.formats.kv_cache`), and of the compute buffers the largest part, logits of a batch
    or, without flash attention, its scores."""
    source = source_of(model)
    file = header_if_there(source.path) if isinstance(source, Source) else None
    if file is None:
        return 0.0
    filled = args.filled()
    ubatch, flash = filled.ubatch or UBATCH, args.flash_attention is not False
    kinds = (args.cache_type_k or "f16", args.cache_type_v or "f16")
    cache = cache_size(file, context, kinds, slots=slots, ubatch=ubatch, flash_attention=flash)
    embeddings = file.find("token_embd.weight")
    wide = embeddings.shape[-1] if embeddings is not None else 0
    try:
        heads = file.integer(f"{file.architecture}.attention.head_count") or 0
    except CookError:
        heads = 0
    if not flash:
        wide = max(wide, heads * context * slots)
    return (cache.total if cache is not None else 0) + 4.0 * ubatch * wide


def read_bytes(model: Input) -> float:
    """Bytes of weights that one token is computed with; of a quant by its source's shares, of a
    model made of another by the other's."""
    size = model_bytes(model)
    assert size is not None, "asked only of models of a known size"
    source = source_of(model)
    return size * (_share_used(source.path) if isinstance(source, Source) else 1.0)


def head_bytes(model: Input) -> float:
    """The same of one token of the head that ``model`` is or holds, the output included."""
    if isinstance(model, SpliceHeadStep):
        model = model.head
    source = source_of(model)
    file = header_if_there(source.path) if isinstance(source, Source) else None
    head = head_of(file) if file is not None else None
    if file is None or head is None:
        return read_bytes(model)
    own = head.tensors_of(file)
    if not head.alone:  # it shares the target's
        own += [tensor for tensor in file.tensors if tensor.name == "output.weight"]
    size = float(sum(tensor.size_bytes or 0 for tensor in own))
    made = model.predicted_bytes() if isinstance(model, ModelStep) else None
    return size * made / (head_alone(file).tensor_bytes or made) if made else size


def computed_bytes(model: Input) -> float:
    """What a batch computes with for each token: two bytes a weight. A quant saves reading, not
    arithmetic: as many products are made of it as of its source."""
    share, source = 1.0, model
    while isinstance(source, ModelStep):
        share *= source.computed_share()
        source = source.origin
    file = header_if_there(source.path) if isinstance(source, Source) else None
    weights = sum(tensor.elements for tensor in file.tensors) if file is not None else 0
    if not weights or not isinstance(source, Source):
        return read_bytes(model)
    return 2.0 * weights * _share_used(source.path) * share


def source_of(model: Input) -> Input:
    """The file that ``model`` is made of, where it is made of one."""
    while isinstance(model, ModelStep):
        model = model.origin
    return model


@cache
def _share_used(path: Path) -> float:
    try:
        active = active_bytes(header(path))
    except CookError:
        return 1.0
    return active.read_bytes / active.size_bytes if active and active.read_bytes else 1.0


def prompt_tokens(prompts: tuple[Prompt, ...], model: Input) -> tuple[float, ...]:
    """Tokens of each prompt, about, by the vocabulary of ``model``."""
    source = source_of(model)
    return _counted(prompts, source.path if isinstance(source, Source) else None)


@lru_cache(maxsize=64)
def _counted(prompts: tuple[Prompt, ...], model: Path | None) -> tuple[float, ...]:
    each = max(SAMPLED_CHARACTERS // max(len(prompts), 1), 64)
    sample = "\n".join(p.whole[:each] for p in prompts[: SAMPLED_CHARACTERS // each])
    vocabulary = _vocabulary(model) if model is not None else None
    tokens = tokens_about(vocabulary, sample) if vocabulary is not None else None
    token_bytes = len(sample.encode()) / tokens if tokens else BYTES_A_TOKEN
    return tuple(max(len(p.whole.encode()) / token_bytes, 1.0) for p in prompts)


@lru_cache(maxsize=2)
def _vocabulary(model: Path) -> Vocabulary | None:
    try:
        return read_vocabulary(header(model))
    except CookError:
        return None


def wide(width: int) -> float:
    """How many decodes of one token take as long as one of ``width`` tokens."""
    return 1 + COST_PER_WIDTH * (width - 1)


def text_cost(model: Input, text: Input, context: int, chunks: int | None) -> Cost | None:
    """Of a program that reads ``chunks`` of a text, or all of it, with ``model``."""
    size = model_bytes(model)
    text_bytes = model_bytes(text)
    if size is None or not text_bytes:
        return None
    tokens = text_bytes / BYTES_A_TOKEN
    if chunks is not None:
        tokens = min(tokens, float(chunks * context))
    return Cost((size,), 0.0, tokens / CHUNK_TOKENS, tokens * computed_bytes(model))
