"""Active bytes: what of a model's weights is read to generate one token, by tensor group.

Decoding one token is bound by memory, so this is what a quant costs in time, where its size is what
it costs in room: in a mixture of experts the two differ, and attention, a few per cent of the file,
can be most of what is read. From headers alone: every tensor is read once and whole, but

- routed experts: as many of them as the router chooses (``<arch>.expert_used_count``), of all;
- token embeddings: one row;
- embeddings that are the output as well (no ``output.weight``): whole, as output;
- layers that only predict ahead (MTP): not at all, as they have no part in the token.

The KV cache, which grows with the context, is not counted. Several tokens in one batch (a
verification, a prompt) choose different experts and read more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cook.formats.gguf import GgufFile
from cook.formats.reduction import EXPERTS_USED
from cook.recipe.groups import Group, group_of, mtp_layers_of

_EMBEDDINGS, _OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class GroupReads:
    """One group: ``read_bytes`` of its ``size_bytes`` are read for a token."""

    group: Group
    size_bytes: int
    read_bytes: int


@dataclass(frozen=True)
class ActiveBytes:
    """What one token reads, groups in the order of :class:`Group`, empty ones left out."""

    groups: tuple[GroupReads, ...]
    read_bytes: int
    size_bytes: int

    def share(self, *groups: Group) -> float:
        """The share of ``groups`` in all that is read; 0 where nothing is."""
        read = sum(g.read_bytes for g in self.groups if g.group in groups)
        return read / self.read_bytes if self.read_bytes else 0.0


class TokenReads:
    """How much of each tensor of one model a token reads, worked out once for all its quants.

    ``experts``: routed experts that a token uses where that is not the model's own number.
    ``known`` is False where there are routed experts and the header does not say how many of them
    a token uses; they then count as read whole. ``mixture``: whether there are any.
    """

    def __init__(self, file: GgufFile, experts: int | None = None) -> None:
        """InputError where the header is none of a model."""
        count, used = file.number("expert_count"), experts or file.number(EXPERTS_USED)
        chosen = min(used / count, 1.0) if count and used else 1.0
        layers = mtp_layers_of(
            (t.name for t in file.tensors),
            file.number("block_count"),
            file.number("nextn_predict_layers"),
        )
        tied = file.find(_OUTPUT) is None
        self._uses: dict[str, tuple[Group, float]] = {}
        for tensor in file.tensors:
            group = group_of(tensor.name, file.architecture, layers)
            part = 1.0
            if group is Group.ROUTED_EXPERTS:
                part = chosen
            elif group is Group.MTP:
                part = 0.0
            elif tied and tensor.name == _EMBEDDINGS:
                group = Group.OUTPUT
            elif group is Group.EMBEDDINGS and len(tensor.shape) > 1:
                part = 1 / max(tensor.shape[1], 1)
            self._uses[tensor.name] = group, part
        self.mixture = any(group is Group.ROUTED_EXPERTS for group, _ in self._uses.values())
        self.known = bool(count and used) or not self.mixture

    def of(self, sizes: Mapping[str, int]) -> ActiveBytes:
        """The active bytes of tensors of these sizes (bytes by name): the model's, or a quant's."""
        size: dict[Group, int] = dict.fromkeys(Group, 0)
        read: dict[Group, float] = dict.fromkeys(Group, 0.0)
        for name, size_bytes in sizes.items():
            group, part = self._uses[name]
            size[group] += size_bytes
            read[group] += part * size_bytes
        groups = tuple(GroupReads(g, size[g], round(read[g])) for g in Group if size[g])
        return ActiveBytes(groups, sum(g.read_bytes for g in groups), sum(size.values()))


def active_bytes(file: GgufFile) -> ActiveBytes | None:
    """The active bytes of a file; None where its header does not say enough."""
    sizes = {t.name: t.size_bytes for t in file.tensors}
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(known) < len(sizes) or file.string("general.architecture") is None:
        return None
    reads = TokenReads(file)
    return reads.of(known) if reads.known else None
