"""What the steps of a build share: its phases, a model as a step has it (a source, or what another
step made), and how much work models and texts are, from headers alone."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

from cook.engines.base import UBATCH, ModelArgs, QuantizeResult
from cook.errors import CookError
from cook.formats.gguf import header, header_if_there, read_gguf
from cook.formats.heads import head_alone, head_of
from cook.formats.kv_cache import cache_size
from cook.formats.naming import split_name
from cook.formats.vocabulary import Vocabulary, read_vocabulary, tokens_about
from cook.graph.step import Cost, Input, Source, Step, Workbench, digest_of_all
from cook.graph.store import Artifact, StoredFile
from cook.prompts.prompt_set import Prompt
from cook.recipe.active import active_bytes


class Phase(StrEnum):
    """One part of a build, in the usual order."""

    CONVERT = "convert the source"
    IMATRIX = "importance matrix"
    QUANTIZE = "quantize the drafts"
    QUALITY = "PPL, KLD and memory"
    TRACE = "record the target"
    REPLAY = "replay the drafts"
    TIMES = "time target and drafts"
    LIVE = "live runs"
    CHECKS = "check outputs and counts"


MODEL_FILE = "model.gguf"
"""Its name where it is one file; shards are called after it (``model-00001-of-00003.gguf``)."""


@dataclass(frozen=True)
class ModelStep(Step[QuantizeResult]):
    """A step whose artifact is a model, made of another."""

    phase: ClassVar[str] = Phase.QUANTIZE

    @property
    @abstractmethod
    def origin(self) -> Input:
        """The model that it is made of."""

    @property
    def head_file(self) -> Input:
        """The model whose head it has: itself, unless it was given another's."""
        return self

    def computed_share(self) -> float:
        """How much of the origin's arithmetic is left; changing types saves none."""
        return 1.0


def _model_files(artifact: Artifact) -> tuple[StoredFile, ...]:
    shards = [f for f in artifact.files if split_name(Path(f.name)) is not None]
    return tuple(sorted(shards, key=lambda f: f.name)) or tuple(
        f for f in artifact.files if f.name == MODEL_FILE
    )


def model_paths(artifact: Artifact) -> tuple[Path, ...]:
    """Its files in order: an engine is given the first."""
    return tuple(artifact.file(f.name) for f in _model_files(artifact))


def model_digest(artifact: Artifact) -> str:
    """Of its bytes, as the digest of a :class:`Source` of the same files."""
    return digest_of_all([f"sha256:{f.sha256}" for f in _model_files(artifact)])


def made_bytes(bench: Workbench, node: Input) -> int:
    """Size of the model ``node``, all its files."""
    if isinstance(node, Source):
        return node.size_bytes
    return sum(f.size_bytes for f in _model_files(bench.artifact(node)))


def model_path(bench: Workbench, node: Input) -> Path:
    """The file of the model ``node`` to give to an engine: a source's, or a made one's first."""
    return node.path if isinstance(node, Source) else model_paths(bench.artifact(node))[0]


def written_model(
    path: Path, started: float, command: tuple[str, ...], peak_rss_bytes: int | None = None
) -> QuantizeResult:
    """What a step says of the model that it wrote as ``path``, ``started`` as
    ``time.monotonic()`` has it."""
    tensors = read_gguf(path).tensors
    return QuantizeResult(
        types={tensor.name: tensor.type_name for tensor in tensors},
        tensor_bytes=sum(tensor.size_bytes or 0 for tensor in tensors),
        seconds=time.monotonic() - started,
        peak_rss_bytes=peak_rss_bytes,
        command=command,
    )


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


def trunk_bytes(model: Input) -> float | None:
    """The same of what is in memory where no head drafts: both engines leave one inside of the file
    out (``load_mtp``; ik: ``mtp``, TENSOR_SKIP), but for step35, which ik loads whole."""
    size = model_bytes(model)
    file = header_if_there(model.path) if isinstance(model, Source) else None
    head = head_of(file) if file is not None else None
    if file is None or head is None or head.alone or file.architecture == "step35":
        return size
    return (size or 0.0) - sum(tensor.size_bytes or 0 for tensor in head.tensors_of(file))


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
    if isinstance(model, ModelStep):
        model = model.head_file
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
