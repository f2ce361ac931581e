"""Rules: from tensor names to types, by the engines' own semantics.

The first rule of a list that hits a tensor decides; a selector is a group's name or a pattern
found anywhere in the tensor's name. :class:`ModelTensors` says for every tensor what the engine
will write: tensors that it does not quantize keep their source type whatever a rule says, the rest
follow the rules, and what no rule hits follows the quant's mixture. Where all types are known, so
are the exact bytes.

Sources: mainline ``tensor_allows_quantization`` (``src/llama-quant.cpp``), ik
``llama_model_quantize_internal`` (``src/llama-quantize.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Literal, Protocol

from cook.documents.tree import Location
from cook.errors import InputError, Problem
from cook.formats.gguf_writer import SplitLimit
from cook.formats.heads import head_in
from cook.formats.quant_types import (
    LLAMA_CPP,
    by_name,
    bytes_as,
    fallback,
    ftype_by_name,
    stored_type,
)
from cook.formats.reduction import Reduction, reductions
from cook.recipe.groups import SELECTORS, Group, group_of, mtp_layers_of, mtp_part_of
from cook.recipe.pattern import Pattern, PatternTimeout, parse_pattern

_INTEGERS = {"i8", "i16", "i32", "i64"}
_BOTH = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "attn_rel_b.weight")
_POSITIONS = {"position_embd.weight", "token_types.weight"}
_IK = ("ssm_x.weight", "ssm_dt.weight")
_LLAMA_CPP = (
    *("ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2")),
    *(f"time_mix_{part}.weight" for part in ("a0", "a1", "a2", "g1", "g2")),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
_GLM5_NEXT = (
    *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
    *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight"),
    *("ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight"),
    "attn_v_b.weight",
)


def quantizable(
    name: str, shape: tuple[int, ...], type_name: str, flavour: str, architecture: str = ""
) -> bool:
    """Whether ``flavour`` quantizes this tensor; ``shape`` has ne0 first, trailing ones ignored."""
    if all(n == 1 for n in shape[1:]) or not name.endswith("weight"):
        return False
    if type_name.lower() in _INTEGERS or name in _POSITIONS:
        return False
    kept: tuple[str, ...] = _BOTH
    if flavour == LLAMA_CPP:
        kept += _LLAMA_CPP
        if architecture in ("glm5-next", "glm5_next"):
            kept += _GLM5_NEXT
    else:
        kept += _IK
    return not any(part in name for part in kept)


FORCE_PATTERN = "re:"


class Tensor(Protocol):
    """What resolution reads of a tensor (``cook.formats.gguf.TensorInfo`` satisfies it)."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type_name(self) -> str: ...


class SizedTensor(Tensor, Protocol):
    """A tensor that knows its present size; None for a type we do not know."""

    @property
    def size_bytes(self) -> int | None: ...


@dataclass(frozen=True)
class Rule:
    """Tensors that ``selector`` hits get ``type`` (exact spelling).

    ``owner`` is the quant whose list the rule stands in, ``at`` its place in the recipe.
    """

    selector: str
    type: str
    owner: str = ""
    at: Location | None = field(default=None, compare=False)

    @property
    def group(self) -> str | None:
        return self.selector if self.selector in SELECTORS else None

    @property
    def pattern(self) -> Pattern | None:
        """The pattern, unless the selector is a group; PatternError if it is not valid."""
        if self.group is not None:
            return None
        return parse_pattern(self.selector.removeprefix(FORCE_PATTERN))

    def __str__(self) -> str:
        return f"{self.selector}: {self.type}"


@dataclass(frozen=True)
class TensorsFrom:
    """Tensors that ``publisher`` made of ``model``, a shard each, taken in place of quantizing.

    ``revision`` None is each repository's newest; ``key`` is the fingerprint of the one key that
    may have signed their maps, None for whoever did, if anyone.
    """

    publisher: str
    model: str
    revision: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Quant:
    """A candidate after expansion: nothing is inherited or swept any more.

    ``ftype`` is the base type by its exact spelling; ``mixture`` is what happens to tensors
    that no rule hits: ``"engine"`` (its built-in mixture) or ``"pure"`` (the base type's own
    tensor type). ``use_imatrix``: quantize with the recipe's imatrix if it has one.
    ``tensors_from``: who quantized its tensors, None for here. ``experts`` and ``prune_layers``:
    the values to try of each; every combination is a candidate.
    ``split``: None for one file. ``part``: what of the source it is made of; None for all.
    """

    name: str
    ftype: str
    rules: tuple[Rule, ...] = ()
    mixture: str = "engine"
    mixture_stated: bool = False
    use_imatrix: bool = True
    tensors_from: TensorsFrom | None = None
    experts: tuple[int, ...] = ()
    prune_layers: tuple[tuple[int, ...], ...] = ()
    split: SplitLimit | None = None
    part: Literal["head"] | None = None
    at: Location | None = field(default=None, compare=False)

    @property
    def candidates(self) -> tuple[Reduction, ...]:
        """The candidates made of it: the whole, or every combination of its lists."""
        return reductions(self.experts, self.prune_layers)

    @property
    def default_type(self) -> str:
        """The tensor type of the base type."""
        return ftype_by_name(self.ftype).default

    @property
    def uncovered_type(self) -> str | None:
        """The type of tensors that no rule hits; None where the engine's mixture decides."""
        default = self.default_type
        # With an unquantized base type neither engine applies a mixture.
        plain = default in ("f32", "f16", "bf16")
        return default if plain or self.mixture == "pure" else None


@dataclass(frozen=True)
class Resolution:
    """What an engine will write.

    ``types``: every tensor -> type, or None where the engine's mixture decides. ``rule_of``:
    every quantizable tensor -> index of the rule that hit it, or None. ``kept``: tensors the
    engine does not quantize. ``problems`` are located in the recipe.
    """

    types: Mapping[str, str | None]
    rule_of: Mapping[str, int | None]
    kept: frozenset[str]
    problems: tuple[Problem, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every type is known before the engine has run."""
        return all(t is not None for t in self.types.values())


class ModelTensors:
    """A model's tensors and what rules come to on them, each rule and quant worked out once."""

    def __init__(self, tensors: Sequence[SizedTensor], architecture: str = "") -> None:
        self.tensors, self.architecture = tensors, architecture
        self.names = tuple(t.name for t in tensors)
        layers = mtp_layers_of(self.names)
        self._groups: dict[str, list[str]] = {}
        for name in self.names:
            group = group_of(name, architecture, layers)
            self._groups.setdefault(group, []).append(name)
            if group is Group.MTP and (part := mtp_part_of(name)) is not None:
                self._groups.setdefault(part, []).append(name)
        self._hits: dict[str, frozenset[str]] = {}
        self._kept: dict[str, frozenset[str]] = {}
        self._resolved: dict[tuple[Quant, str], Resolution] = {}

    def of(self, quant: Quant) -> ModelTensors:
        """Those that ``quant`` is made of: all, or what a file of the head alone has; none where
        there is no head."""
        return self if quant.part is None else self._head_alone

    @cached_property
    def _head_alone(self) -> ModelTensors:
        head = head_in(self.names, self.architecture)
        kept = [t for t in self.tensors if head is not None and head.needs(t.name)]
        return ModelTensors(kept, self.architecture)

    def hits(self, rule: Rule) -> frozenset[str]:
        """Names that the rule's selector hits; PatternTimeout or PatternError if it cannot be."""
        if rule.selector not in self._hits:
            pattern = rule.pattern
            self._hits[rule.selector] = (
                frozenset(self._groups.get(rule.selector, ()))
                if pattern is None
                else pattern.search_all(self.names)
            )
        return self._hits[rule.selector]

    def kept(self, flavour: str) -> frozenset[str]:
        """Names of the tensors that ``flavour`` does not quantize."""
        if flavour not in self._kept:
            self._kept[flavour] = frozenset(
                t.name
                for t in self.tensors
                if not quantizable(t.name, t.shape, t.type_name, flavour, self.architecture)
            )
        return self._kept[flavour]

    def resolve(self, quant: Quant, flavour: str) -> Resolution:
        """The type of every tensor after quantizing as ``quant`` says.

        Problems: rows that a type's blocks do not divide (naming what the engine would silently
        write instead), types whose rows would not interleave, patterns that hang.
        """
        if (known := self._resolved.get((quant, flavour))) is not None:
            return known
        model = self.of(quant)
        where = quant.at or Location("<recipe>", 1, 1)
        problems: list[Problem] = []
        kept = model.kept(flavour)
        rule_of: dict[str, int | None] = {n: None for n in model.names if n not in kept}
        for index, rule in enumerate(quant.rules):
            try:
                hits = model.hits(rule)
            except PatternTimeout:
                problems.append((rule.at or where).problem(timeout_message(rule)))
                continue
            for name in hits:
                if name in rule_of and rule_of[name] is None:
                    rule_of[name] = index
        types: dict[str, str | None] = {}
        faults, uncovered = _Faults(where, quant, flavour), quant.uncovered_type
        for tensor in model.tensors:
            if tensor.name in kept:
                types[tensor.name] = tensor.type_name
                continue
            hit = rule_of[tensor.name]
            wanted = quant.rules[hit].type if hit is not None else uncovered
            if wanted is None:
                faults.left_to_the_mixture(tensor)
            types[tensor.name] = None if wanted is None else faults.stored(tensor, wanted, hit)
        resolution = Resolution(
            MappingProxyType(types),
            MappingProxyType(rule_of),
            kept,
            (*problems, *faults.problems()),
        )
        self._resolved[quant, flavour] = resolution
        return resolution


def timeout_message(rule: Rule) -> str:
    return f"rule `{rule.selector[:60]}` takes too long to match: it backtracks catastrophically"


class _Faults:
    """Collects tensors whose wanted type cannot be stored, reported once a rule."""

    def __init__(self, where: Location, quant: Quant, flavour: str) -> None:
        self._where, self._quant, self._flavour = where, quant, flavour
        self._found: dict[tuple[int | None, str, str], list[str]] = {}
        self._mixed: dict[str, list[Tensor]] = {}
        """Type written -> tensors whose rows do not divide, where the mixture decides."""
        self._mixed_weights = 0

    def stored(self, tensor: Tensor, wanted: str, rule: int | None) -> str:
        try:
            written = stored_type(tensor.name, tensor.shape, wanted, self._flavour)
        except InputError as error:
            self._note(rule, "error", f"{error.message} ({{tensors}})", tensor.name)
            return wanted
        if written != wanted:
            block = by_name(wanted).block
            if tensor.shape[0] % block:
                message = (
                    f"rows of {tensor.shape[0]} do not divide by {block} as {wanted} requires: "
                    f"{self._flavour} would silently write {written} ({{tensors}})"
                )
                self._note(rule, "error", message, tensor.name)
            else:
                message = f"{wanted} cannot be interleaved here and becomes {written} ({{tensors}})"
                self._note(rule, "warning", message, tensor.name)
        return written

    def left_to_the_mixture(self, tensor: Tensor) -> None:
        """A tensor whose type the engine's mixture decides on, by the base type's own: most of
        them get that, or one of blocks as large."""
        wanted = by_name(self._quant.default_type)
        self._mixed_weights += prod(tensor.shape)
        try:
            written = fallback(wanted, tensor.shape[0], self._flavour)
        except InputError as error:
            self._note(None, "error", f"{error.message} ({{tensors}})", tensor.name)
            return
        if written is not None:
            self._mixed.setdefault(written, []).append(tensor)

    def _note(self, rule: int | None, severity: str, message: str, name: str) -> None:
        self._found.setdefault((rule, severity, message), []).append(name)

    def problems(self) -> Iterator[Problem]:
        """One for each rule and type, those of the mixture last."""
        prefix = f"quant {self._quant.name}: "
        for (rule, severity, message), names in self._found.items():
            at = (self._quant.rules[rule].at if rule is not None else None) or self._where
            hint = "name a type that fits these rows" if rule is not None else "add a rule for them"
            text = prefix + message.replace("{tensors}", some(names))
            yield at.problem(text, hint=hint if severity == "error" else None, severity=severity)
        wanted = by_name(self._quant.default_type)
        for written, tensors in self._mixed.items():
            columns = ", ".join(str(n) for n in sorted({t.shape[0] for t in tensors}))
            share = sum(prod(t.shape) for t in tensors) / self._mixed_weights
            yield self._where.problem(
                f"{prefix}rows of {columns} do not divide by {wanted.block} as "
                f"{wanted.name} requires: {self._flavour} writes {written} in its place, "
                f"{by_name(written).bpw:.4g} bits a weight for {wanted.bpw:.4g} "
                f"({some([t.name for t in tensors])}; {share:.0%} of the weights)",
                hint="name types that fit these rows in rules: then the size is what you ask for",
                severity="warning",
            )


def some(names: Sequence[str], show: int = 2) -> str:
    """``a, b and 7 more``."""
    shown = ", ".join(names[:show])
    return f"{shown} and {len(names) - show} more" if len(names) > show else shown


def tensor_sizes(
    tensors: Iterable[SizedTensor], resolution: Resolution
) -> Mapping[str, int | None]:
    """Bytes of each tensor's data after quantizing; None where the engine's mixture decides."""
    sizes: dict[str, int | None] = {}
    for tensor in tensors:
        wanted = resolution.types[tensor.name]
        if wanted is None:
            sizes[tensor.name] = None
        elif wanted == tensor.type_name:
            sizes[tensor.name] = tensor.size_bytes
        else:
            sizes[tensor.name] = bytes_as(wanted, tensor.shape)
    return sizes


def predicted_bytes(tensors: Iterable[SizedTensor], resolution: Resolution) -> int | None:
    """Bytes of all tensor data (no header, no padding); None if any type is not yet known."""
    sizes = tensor_sizes(tensors, resolution).values()
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def predicted_bpw(tensors: Iterable[SizedTensor], resolution: Resolution) -> float | None:
    """Bits per weight over all tensors, as mainline's "BPW" counts them."""
    listed = tuple(tensors)
    size = predicted_bytes(listed, resolution)
    elements = sum(prod(tensor.shape) for tensor in listed)
    return None if size is None or not elements else 8 * size / elements
