"""An engine: one build of the llama.cpp family's tools, what it is asked, and what it answers.

:class:`Engine` knows the build and writes its command lines; the two flavours
(:mod:`cook.engines.llama_cpp`, :mod:`cook.engines.ik_llama_cpp`) add what they spell their own way,
and :mod:`cook.engines.discover` makes one from a directory of binaries. Jobs are run by
:mod:`cook.engines.tool_runs` and :mod:`cook.engines.server`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from cook.engines.environment import default_threads, engine_environment
from cook.engines.facts import Facts
from cook.engines.options import inherited
from cook.engines.speculation import BY_DRAFT, BY_HEAD, NgramSettings
from cook.errors import InputError, PrerequisiteError
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour as Flavour

T = TypeVar("T")

BATCH, UBATCH = 2048, 512
"""Tokens of the logical and the physical batch by default, of both engines."""


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
class TypeRule:
    """One resolved rule: tensors whose name the ECMAScript ``pattern`` finds get ``type``."""

    pattern: str
    type: str


@dataclass(frozen=True)
class QuantizeJob:
    """Quantize ``source`` (shard 1 if split) into ``output`` with base type ``ftype``.

    ``rules`` apply in order, first match wins, unanchored; they have the types of the embeddings
    and the output, too. ``expected`` is tensor name -> type name as resolved; log and file must
    both show it.
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
    """``types`` is tensor -> type as the engine's log showed it (checked against the file).

    ``command`` makes the same tensors; it need not be what ran. ``peak_rss_bytes`` is the
    engine's, None where nothing of it had to run.
    """

    types: Mapping[str, str]
    tensor_bytes: int
    seconds: float
    peak_rss_bytes: int | None
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


MASK_TOKENS = 64
"""Engines enlarge a batch below the padding of attention's mask, so many tokens or fewer."""


def contradictions(ran: Mapping[str, int], asked: Mapping[str, int]) -> Iterator[str]:
    """Where a model runs otherwise than ``asked``, in words; what ``ran`` does not say is left.

    Both by the library's names without ``n_``: ``ctx``, ``batch``, ``ubatch``, ``threads`` and
    ``threads_batch``; ``seq`` of ``ran`` is the context of one slot, where that is not ``ctx``.
    Engines may enlarge a context, and cut batches to the one asked for or the one made.
    """
    context = asked["ctx"]
    made = ran.get("ctx", context)
    if (slot := ran.get("seq", made)) < context:
        yield f"a context of {slot} tokens, not {context}"
    for name, words in (("batch", "batches"), ("ubatch", "physical batches")):
        least, most = (min(asked["batch"], asked[name], size) for size in (context, made))
        if name in ran and not least <= ran[name] <= max(most, MASK_TOKENS):
            yield f"{words} of {ran[name]} tokens, not {least}"
    for name, words in (("threads", "threads"), ("threads_batch", "threads for batches")):
        if ran.get(name, asked[name]) != asked[name]:
            yield f"{ran[name]} {words}, not {asked[name]}"


def cache_halves(cache_type: str) -> tuple[str, str]:
    """Types of keys and of values, of ``q8_0`` (both) or ``q8_0/q5_1``."""
    keys, _, values = cache_type.partition("/")
    return keys, values or keys


@dataclass(frozen=True)
class ModelArgs:
    """How one model is placed and run; the same fields serve target and draft.

    ``None`` means "the engine's default". For a draft that is the target's threads, devices,
    batches, flash attention and RPC servers, and a KV cache of f16; never the target's placement
    of tensors or experts, nor its KV types. ``extra`` are raw flags; a draft's must be such as
    the engine has for drafts, and a target's are its draft's as well.
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
        """What really applies to a draft with these arguments in a server of ``target``'s."""
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
            extra=inherited(target.extra, self.extra),
        )

    def filled(self) -> ModelArgs:
        """These arguments with a number wherever both engines' servers would take one."""
        threads = _first(self.threads, default_threads())
        return replace(
            self,
            threads=threads,
            threads_batch=_first(self.threads_batch, threads),
            batch=_first(self.batch, BATCH),
            ubatch=_first(self.ubatch, UBATCH),
        )

    def numerics(self) -> dict[str, object]:
        """What of these arguments may change a token: part of the key of what holds tokens."""
        found: dict[str, object] = {
            "cache_types": [self.cache_type_k, self.cache_type_v],
            "flash_attention": self.flash_attention,
        }
        return found | {"flags": list(self.extra)} if self.extra else found

    def batching(self) -> dict[str, object]:
        """What of these arguments says how wide a worker reads (``reply_rows`` in worker.c)."""
        return {"ubatch": self.ubatch, **({"on_gpu": True} if self.n_gpu_layers else {})}


def _first(own: T | None, other: T | None) -> T | None:
    return other if own is None else own


@dataclass(frozen=True, order=True)
class DraftSettings:
    """Drafting parameters of one candidate; ``p_min`` in [0, 1], ``n_max`` 0 is no drafting."""

    n_max: int
    n_min: int = 0
    p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.n_max < 0 or self.n_min < 0 or not 0.0 <= self.p_min <= 1.0:
            raise InputError(f"impossible draft settings: {self}")


@dataclass(frozen=True)
class ServerJob:
    """One ``llama-server`` on loopback: a target, and a draft or none.

    ``ngram``: speculation without a file, which drafts before a draft does. ``slots``: requests
    that it answers at once, each with a ``context`` of its own. ``draft_context``: the draft's own,
    None for the target's. ``head``: what kind of head the draft is, None for a model; the head
    inside of the target where ``draft`` is that file.
    """

    target: Path
    target_args: ModelArgs
    context: int
    draft: Path | None = None
    draft_args: ModelArgs = field(default_factory=ModelArgs)
    settings: DraftSettings | None = None
    ngram: NgramSettings | None = None
    slots: int = 1
    draft_context: int | None = None
    head: HeadKind | None = None

    @property
    def drafts(self) -> bool:
        """Whether anything is to be drafted."""
        return self.draft is not None or self.ngram is not None

    @property
    def draft_file(self) -> Path | None:
        """What is loaded next to the target; None for no draft, and for the target's own head."""
        return None if self.head is not None and self.draft == self.target else self.draft

    def speculators(self, flavour: str) -> tuple[str, ...]:
        """The kinds of speculation that it asks for, in the order in which they draft."""
        first = (str(self.ngram.type),) if self.ngram is not None else ()
        if self.draft is None:
            return first
        return (*first, BY_DRAFT[flavour] if self.head is None else BY_HEAD[flavour][self.head])


class Engine(ABC):
    """One engine build; ``name`` is how the user calls it (``bundled``, ``ik``, ...).

    A flavour says what its command lines look like; all else is the same for both.
    """

    flavour: Flavour

    def __init__(self, name: str, facts: Facts) -> None:
        self.name = name
        self.facts = facts
        """Everything known of the build: files and hashes, directories, types, flags."""
        self.identity = EngineIdentity(self.flavour, facts.build, facts.commit, facts.digest)
        self.defaults: Mapping[str, str] = facts.defaults
        """What its server does by default, by its help: flag -> value."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Executables and engine libraries whose bytes the identity covers."""
        folders = [Path(self.facts.bin_dir), *map(Path, self.facts.library_dirs)]
        places = (folder / name for name in self.facts.files for folder in folders)
        return tuple(path for path in places if path.is_file())

    def tool(self, name: str) -> Path:
        """Path of ``llama-<name>``; PrerequisiteError with the mending line when absent."""
        path = Path(self.facts.bin_dir) / f"llama-{name}"
        if name not in self.facts.flags or not path.is_file():
            bundled = self.name == "bundled"
            raise PrerequisiteError(
                f"engine {self.name} has no llama-{name} ({path})",
                hint="`make setup` builds it" if bundled else "build all targets of the engine",
            )
        return path

    def has_flag(self, tool: str, flag: str) -> bool:
        """Whether the help of ``llama-<tool>`` offers ``flag``."""
        return flag in self.facts.flags.get(tool, ())

    def environment(self) -> Mapping[str, str]:
        """Scrubbed environment for every tool of this engine (no LLAMA_ARG_*, own HOME)."""
        paths = tuple(Path(path) for path in self.facts.library_path)
        return engine_environment(paths, repack=self.facts.repack)

    def quantize_command(self, job: QuantizeJob) -> tuple[str, ...]:
        """The argv of ``llama-quantize``, for running, the record and the plan."""
        return (
            str(self.tool("quantize")),
            *(("--allow-requantize",) if job.allow_requantize else ()),
            *(("--pure",) if job.pure else ()),
            *(("--imatrix", absolute(job.imatrix)) if job.imatrix else ()),
            *self.rule_flags(job),
            absolute(job.source),
            absolute(job.output),
            job.ftype,
            str(job.threads),
        )

    @abstractmethod
    def rule_flags(self, job: QuantizeJob) -> tuple[str, ...]:
        """The job's rules as this flavour's flags; InputError where it cannot say them."""

    @abstractmethod
    def text_flags(self, tool: str) -> tuple[str, ...]:
        """Flags that make output parseable and input untouched."""

    def imatrix_retries(self) -> tuple[tuple[str, ...], ...]:
        """More arguments to try, in order, when collecting an imatrix segfaults."""
        return ()

    def as_draft(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        """What really applies to a draft with ``given`` in a server of ``target``."""
        return given.as_draft_of(target)

    def as_head(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        """The same of a head."""
        return self.as_draft(given, target, context)

    def check_prompts(self, job: ServerJob, tokens: int) -> None:
        """InputError where a prompt of ``tokens`` tokens would end the server of ``job``."""
        return

    @abstractmethod
    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        """The argv of the server, for running and for the user to copy."""


def absolute(path: Path) -> str:
    """``path`` for a command line: every tool runs in a working directory of its own."""
    return str(path.expanduser().absolute())
