"""What may be chosen: the tensors of a model in ties, spans of them, and the types that each takes.

A *tie* is what gets one type whatever is chosen: a tensor alone, or those that the engines fuse
into one operation when they are of one type (``ffn_up`` and ``ffn_gate``: ``fused_up_gate`` of ik,
``ggml_glu`` of mainline). A *span* is ties of one group in a range of layers; a *mix* has a type
for every tie, in the order of the space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo
from cook.formats.quant_types import Flavour, by_name, bytes_as, needs_imatrix, stored_type
from cook.recipe.groups import Group, group_of, mtp_layers_of
from cook.recipe.rules import quantizable

Mix = tuple[str, ...]
"""A type for every tie of a space, in its order."""

LADDERS: Mapping[str, tuple[str, ...]] = {
    Flavour.LLAMA_CPP: (
        *("iq1_s", "iq2_xxs", "iq2_s", "q2_K", "iq3_xxs", "iq3_s", "iq4_xs", "q5_K", "q6_K"),
        "q8_0",
    ),
    Flavour.IK_LLAMA_CPP: (
        *("iq1_kt", "iq2_kt", "iq2_kl", "iq3_kt", "iq4_kss", "iq4_ks", "iq5_ks", "iq6_k"),
        "q8_0",
    ),
}
"""Types to choose from where none are given: about half a bit apart, and of each size the one that
the flavour's users find best."""
SMALL = 0.01
"""Share of the weights up to which a span is small: a floor holds there, where bits are cheap."""
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)\.weight")
_FUSED = re.compile(r"ffn_(?:up|gate)(_\w+)?")


@dataclass(frozen=True)
class Tie:
    """``tensors`` of one type; ``role`` is what they are called within their ``layer``, None for
    those of no layer."""

    group: str
    role: str
    layer: int | None
    tensors: tuple[TensorInfo, ...]

    @cached_property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors)

    @property
    def routed(self) -> bool:
        """Whether a token is computed with a part of it alone."""
        return self.group == Group.ROUTED_EXPERTS

    def bytes_in(self, type_name: str) -> int:
        """Of its tensors' data in this type, without padding."""
        return sum(bytes_as(type_name, t.shape) for t in self.tensors)


@dataclass(frozen=True)
class Span:
    """``ties`` (places in the space) of one group that change their type together, and the
    ``types`` that all of them take, from the smallest to the largest; ``parent``: the span that it
    was split from."""

    name: str
    group: str
    ties: tuple[int, ...]
    types: tuple[str, ...]
    parent: Span | None = None


@dataclass(frozen=True, eq=False)
class Space:
    """All mixes of a model. ``types`` [tie]: those that each tie takes, from the smallest to the
    largest. ``fixed_bytes``: of what is chosen for no mix, the header and the padding included."""

    ties: tuple[Tie, ...]
    types: tuple[tuple[str, ...], ...]
    fixed_bytes: int

    @classmethod
    def of(
        cls,
        file: GgufFile,
        flavour: str,
        types: Iterable[str],
        *,
        imatrix: bool,
        floor: str | None = None,
        header_bytes: int = 0,
    ) -> Space:
        """The space of ``file`` with those of ``types`` that each tie takes.

        ``imatrix``: whether there is importance data, which never covers embeddings and output.
        ``floor``: the least type of small spans. InputError where a tensor takes none of them.
        """
        kept = {
            t.name
            for t in file.tensors
            if not quantizable(t.name, t.shape, t.type_name, flavour, file.architecture)
        }
        ties = tuple(_ties(file, kept))
        total = sum(tie.elements for tie in ties)
        small = {
            group
            for group in {tie.group for tie in ties}
            if sum(tie.elements for tie in ties if tie.group == group) <= SMALL * total
        }
        least = by_name(floor).bpw if floor is not None else 0.0
        offered = sorted({by_name(t).name for t in types}, key=lambda t: (by_name(t).bpw, t))
        if all(by_name(t).bpw < least for t in offered):
            raise InputError(
                f"no type that is offered reaches the floor {floor}: {', '.join(offered)}",
                hint=f"offer it: --type {floor}",
            )
        taken = []
        for tie in ties:
            fitting = tuple(
                t
                for t in offered
                if all(_takes(one, t, flavour, imatrix) for one in tie.tensors)
                and (tie.group not in small or by_name(t).bpw >= least)
            )
            if not fitting:
                raise InputError(
                    f"{tie.tensors[0].name}: takes none of the types {', '.join(offered)}",
                    hint="offer q8_0 as well, which every tensor takes: --type q8_0",
                )
            taken.append(fitting)
        chosen = {t.name for tie in ties for t in tie.tensors}
        fixed = sum(t.size_bytes or 0 for t in file.tensors if t.name not in chosen)
        padding = len(file.tensors) * (file.alignment - 1)
        return cls(ties, tuple(taken), fixed + padding + header_bytes)

    @cached_property
    def largest(self) -> Mix:
        """The mix of the largest types: what others are changed from."""
        return tuple(types[-1] for types in self.types)

    @cached_property
    def smallest(self) -> Mix:
        return tuple(types[0] for types in self.types)

    @property
    def tensors(self) -> list[TensorInfo]:
        """Those of all ties."""
        return [tensor for tie in self.ties for tensor in tie.tensors]

    def bytes_of(self, mix: Mix) -> int:
        """Of the file of ``mix``, padding taken at its most."""
        return self.fixed_bytes + sum(
            tie.bytes_in(t) for tie, t in zip(self.ties, mix, strict=True)
        )

    def tensor_types(self, mix: Mix) -> dict[str, str]:
        """Tensor -> type."""
        return {
            tensor.name: type_name
            for tie, type_name in zip(self.ties, mix, strict=True)
            for tensor in tie.tensors
        }

    def mix_of(self, types: Mapping[str, str]) -> Mix | None:
        """The mix of these tensors' types; None where no mix of the space is that."""
        found = []
        for tie, offered in zip(self.ties, self.types, strict=True):
            of_tie = {types.get(t.name) for t in tie.tensors}
            only = of_tie.pop()
            if of_tie or only not in offered:
                return None
            found.append(only)
        return tuple(found)

    def changed(self, mix: Mix, span: Span, type_name: str) -> Mix:
        """``mix`` with ``span`` in another type."""
        places = set(span.ties)
        return tuple(type_name if i in places else t for i, t in enumerate(mix))

    def elements(self, span: Span) -> int:
        """Weights of the span's tensors."""
        return sum(self.ties[i].elements for i in span.ties)

    def bytes_in(self, span: Span, type_name: str) -> int:
        """Of the span's tensors in this type."""
        return sum(self.ties[i].bytes_in(type_name) for i in span.ties)

    def least_bytes(self, spans: Sequence[Span]) -> int:
        """Of the smallest file in which each of ``spans`` has one type."""
        least = (min(self.bytes_in(span, t) for t in span.types) for span in spans)
        return self.fixed_bytes + sum(least)

    def spans(self) -> tuple[Span, ...]:
        """The coarsest: one a group, the whole model in all."""
        groups = dict.fromkeys(tie.group for tie in self.ties)
        return tuple(
            self._span(g, [i for i, t in enumerate(self.ties) if t.group == g]) for g in groups
        )

    def split(self, span: Span) -> tuple[Span, ...]:
        """``span`` in two or more: by what its tensors do, else by the halves of its layers; itself
        where it is one tie."""
        roles: dict[str, list[int]] = {}
        for i in span.ties:
            roles.setdefault(self.ties[i].role, []).append(i)
        if len(span.ties) == 1:
            return (span,)
        half = len(span.ties) // 2
        halves = span.ties[:half], span.ties[half:]
        parts = roles.values() if len(roles) > 1 else halves
        return tuple(self._span(span.group, places, span) for places in parts)

    def _span(self, group: str, places: Sequence[int], parent: Span | None = None) -> Span:
        ties = [self.ties[i] for i in places]
        common = set.intersection(*(set(self.types[i]) for i in places))
        types = tuple(t for t in self.types[places[0]] if t in common)
        name = group
        roles = dict.fromkeys(t.role for t in ties)
        of_group = [t for t in self.ties if t.group == group]
        if len(roles) < len({t.role for t in of_group}):
            name = "+".join(roles)
            if any(t.role in roles and t.group != group for t in self.ties):
                name = f"{group} {name}"
        layers = sorted({t.layer for t in ties if t.layer is not None})
        every = {t.layer for t in of_group if t.role in roles}
        if layers and len(layers) < len(every):
            name += f" {layers[0]}" if len(layers) == 1 else f" {layers[0]}-{layers[-1]}"
        return Span(name, group, tuple(places), types, parent)


def _ties(file: GgufFile, kept: set[str]) -> Iterator[Tie]:
    """The ties of the tensors that are quantized, layer by layer."""
    mtp = mtp_layers_of([t.name for t in file.tensors])
    found: dict[tuple[int | None, str], list[TensorInfo]] = {}
    for tensor in file.tensors:
        if tensor.name in kept:
            continue
        match = _BLOCK.fullmatch(tensor.name)
        layer = int(match[1]) if match else None
        role = match[2] if match else tensor.name.removesuffix(".weight")
        if fused := _FUSED.fullmatch(role):
            role = f"ffn_up_gate{fused[1] or ''}"
        found.setdefault((layer, role), []).append(tensor)
    for (layer, role), tensors in found.items():
        group = group_of(tensors[0].name, file.architecture, mtp)
        yield Tie(str(group), role, layer, tuple(tensors))


def _takes(tensor: TensorInfo, type_name: str, flavour: str, imatrix: bool) -> bool:
    """Whether the engine writes ``tensor`` in this very type, and well."""
    covered = imatrix and tensor.name not in ("token_embd.weight", "output.weight")
    if by_name(type_name).imatrix and not covered and flavour in by_name(type_name).imatrix:
        return False
    if needs_imatrix(tensor.name, type_name, "Q8_0", flavour) and not covered:
        return False
    try:
        return stored_type(tensor.name, tensor.shape, type_name, flavour) == type_name
    except InputError:
        return False
