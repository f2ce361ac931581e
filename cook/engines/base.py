"""What cook asks of an engine: jobs in, proven results out.

An engine is a set of llama.cpp-family tools. An adapter is a module-level object that
satisfies :class:`Engine`; ``cook.engines.discover`` makes one from a directory of binaries.
Every method proves its success by the tool's own marker *and* by reading the artifact back;
it raises :class:`cook.errors.StepError` otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from cook.engines.process.supervisor import Supervisor
from cook.formats.quant_types import Flavour as Flavour

T = TypeVar("T")

LiveTool = Literal["server", "spec-bench"]
"""What runs the models live: the server, or ik's llama-spec-bench."""


@dataclass(frozen=True)
class EngineIdentity:
    """What makes results comparable: the bytes that ran.

    ``digest`` is the SHA-256 over the executables and every engine library they load;
    ``build`` is what the binaries report of themselves, e.g. ``"b9999 (0c1e570)"``.
    """

    flavour: Flavour
    build: str
    commit: str | None
    digest: str


@dataclass(frozen=True)
class Capabilities:
    """What the binaries at hand can do, read from the binaries themselves.

    ``quant_types`` are tensor types by their exact engine spelling; ``ftypes`` are the base
    types ``llama-quantize`` accepts; ``flags`` maps tool name -> flags in its help.
    """

    quant_types: frozenset[str]
    ftypes: frozenset[str]
    flags: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class TypeRule:
    """One resolved rule: tensors whose name the ECMAScript ``pattern`` finds get ``type``."""

    pattern: str
    type: str


@dataclass(frozen=True)
class QuantizeJob:
    """Quantize ``source`` (shard 1 if split) into ``output`` with base type ``ftype``.

    ``rules`` apply in order, first match wins, unanchored. ``token_embedding_type`` and
    ``output_type`` are not used: cook states them as rules. ``expected`` is tensor name ->
    type name as resolved; log and file must both show it.
    """

    source: Path
    output: Path
    ftype: str
    rules: tuple[TypeRule, ...]
    imatrix: Path | None
    threads: int
    expected: Mapping[str, str]
    allow_requantize: bool = False
    pure: bool = False


@dataclass(frozen=True)
class QuantizeResult:
    """``types`` is tensor -> type as the engine's log showed it (checked against the file)."""

    types: Mapping[str, str]
    tensor_bytes: int
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImatrixJob:
    """Collect activation statistics of ``model`` over ``corpus``, ``context`` tokens a chunk."""

    model: Path
    corpus: Path
    output: Path
    context: int
    chunks: int | None
    threads: int
    process_output: bool = False
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImatrixResult:
    chunks: int
    perplexity: float | None
    perplexity_error: float | None
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PerplexityJob:
    """Perplexity of ``model`` on ``corpus``; with ``save_base`` also write its logits there."""

    model: Path
    corpus: Path
    context: int
    chunks: int | None
    threads: int
    save_base: Path | None = None
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class PerplexityResult:
    """``perplexity`` and its standard error; ``chunks`` evaluated."""

    perplexity: float
    error: float
    chunks: int
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class DivergenceJob:
    """Compare ``model`` with the logits in ``base`` (``llama-perplexity --kl-divergence``)."""

    model: Path
    base: Path
    context: int
    threads: int
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class DivergenceResult:
    """All in natural units: KLD in nats, ``same_top_percent`` and its error in percent.

    ``perplexity_ratio_error`` is None where the model is so near its base that the engine's
    variance cancels to less than nothing (it prints ``-nan``): the ratio is then 1 within 1e-4.
    """

    perplexity: float
    perplexity_error: float
    base_perplexity: float
    perplexity_ratio: float
    perplexity_ratio_error: float | None
    mean_kld: float
    mean_kld_error: float
    max_kld: float
    p99_kld: float
    median_kld: float
    same_top_percent: float
    same_top_percent_error: float
    rms_delta_p_percent: float
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class ModelArgs:
    """How one model is placed and run; the same fields serve target and draft.

    ``None`` means "the engine's default". For a draft that is the target's threads, devices,
    batches, flash attention and RPC servers, and a KV cache of f16; never the target's placement
    of tensors or experts, nor its KV types. ``extra`` are raw flags; a draft's must be such as
    the engine has for drafts.
    """

    n_gpu_layers: int | None = None
    override_tensor: tuple[str, ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int | None = None
    devices: tuple[str, ...] = ()
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attention: bool | None = None
    threads: int | None = None
    threads_batch: int | None = None
    batch: int | None = None
    ubatch: int | None = None
    rpc: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def as_draft_of(self, target: ModelArgs) -> ModelArgs:
        """What really applies to a draft with these arguments beside ``target``'s."""
        return replace(
            self,
            devices=self.devices or target.devices,
            cache_type_k=self.cache_type_k or "f16",
            cache_type_v=self.cache_type_v or "f16",
            flash_attention=_first(self.flash_attention, target.flash_attention),
            threads=_first(self.threads, target.threads),
            # Threads of its own serve a draft's batches, too, on either engine.
            threads_batch=_first(_first(self.threads_batch, self.threads), target.threads_batch),
            batch=_first(self.batch, target.batch),
            ubatch=_first(self.ubatch, target.ubatch),
            rpc=self.rpc or target.rpc,
        )


def _first(own: T | None, other: T | None) -> T | None:
    return other if own is None else own


@dataclass(frozen=True)
class DraftSettings:
    """Drafting parameters of one candidate; ``p_min`` in [0, 1]."""

    n_max: int
    n_min: int = 0
    p_min: float = 0.0


@dataclass(frozen=True)
class ServerJob:
    """One ``llama-server`` on loopback: a target, and a draft or none."""

    target: Path
    target_args: ModelArgs
    context: int
    draft: Path | None = None
    draft_args: ModelArgs = field(default_factory=ModelArgs)
    settings: DraftSettings | None = None


class Engine(Protocol):
    """One engine build. ``name`` is how the user calls it (``bundled``, ``ik``, ...)."""

    @property
    def name(self) -> str: ...
    @property
    def flavour(self) -> Flavour: ...
    @property
    def identity(self) -> EngineIdentity: ...
    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Executables and engine libraries whose bytes the identity covers."""
        ...

    def tool(self, name: str) -> Path:
        """Path of ``llama-<name>``; PrerequisiteError with the mending line when absent."""
        ...

    def quantize(self, job: QuantizeJob, supervisor: Supervisor) -> QuantizeResult: ...
    def quantize_command(self, job: QuantizeJob) -> tuple[str, ...]:
        """The exact argv that :meth:`quantize` runs (for the record and the plan)."""
        ...

    def imatrix(self, job: ImatrixJob, supervisor: Supervisor) -> ImatrixResult: ...
    def perplexity(self, job: PerplexityJob, supervisor: Supervisor) -> PerplexityResult: ...
    def divergence(self, job: DivergenceJob, supervisor: Supervisor) -> DivergenceResult: ...
    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        """The argv of the server, for running and for the user to copy."""
        ...

    def placement(self, tool: str, given: ModelArgs) -> tuple[str, ...]:
        """``given`` as flags of ``llama-<tool>``, for the ``args`` of a job."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Scrubbed environment for every tool of this engine (no LLAMA_ARG_*, own HOME)."""
        ...
