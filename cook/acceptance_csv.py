"""``acceptance_results.csv``: what a type costs a tensor in acceptance, as allocators read it.

The shape is that of Thireus' ``kld_results.csv``, which his ``quant_assign.py`` reads: a row a
type, a column a tensor, higher is worse, an empty cell is not known. The value is the share of the
reference draft's acceptance that is lost, ``1 - rate / reference rate``, both replayed on the same
prompts at the same draft length. cook measures whole drafts. So a cell is written where a draft
differs from the reference in tensors of one group alone, which all became one type, and nowhere
else: it is what these tensors lose *together*, in the column of each, as that suite writes groups
of tensors, too.

What ``quant_assign.py`` makes of it decides the rest. It raises a cell to a fraction of a power and
halves intervals from 0 upwards, so what noise makes negative is written as 0. It pairs the columns
of a layer's up and gate experts, and wants as many of the one as of the other, so every matrix of a
group that was measured has a column. It reads one row, and holds an empty cell for not measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats.gguf import GgufFile
from cook.formats.headers import header
from cook.recipe.groups import Group, group_of, mtp_layers_of
from cook.record.measured import ReplayedPrompts
from cook.record.record import Draft, Record


@dataclass(frozen=True)
class AcceptanceTable:
    """``lost`` by type, then by tensor; ``tensors`` are those of the columns, in the order of the
    reference's file; ``left_out`` are drafts that tell nothing, with why."""

    reference: str
    prompts: int
    lost: Mapping[str, Mapping[str, float]]
    tensors: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


class _NothingToldError(Exception):
    """Why a draft says nothing of any one group."""


def acceptance_table(record: Record, reference: str | None = None) -> AcceptanceTable:
    """What ``record`` holds, against the draft ``reference`` (None: the largest replayed one).

    InputError where the record has no replays, no such draft, or its file is gone.
    """
    replayed = {(r.draft, r.engine): r for r in reversed(record.replayed)}
    drafts = [d for d in record.drafts if (d.quant, d.engine) in replayed]
    if not drafts:
        raise InputError(
            f"{record.recipe}: no draft of this record was replayed",
            hint="`score: {method: replay}`, the default, does so",
        )
    if reference is None:
        base = max(drafts, key=lambda d: d.file_bytes or 0)
    elif not (named := [d for d in drafts if d.quant == reference]):
        known = ", ".join(d.quant for d in drafts)
        raise InputError(f"{reference}: no such draft was replayed", hint=f"there are {known}")
    else:
        base = named[0]
    try:
        file = _file(base)
    except _NothingToldError as error:
        raise InputError(f"{base.quant}: {error}", hint="a build of its recipe makes it") from None
    found: list[tuple[str, tuple[str, ...], float]] = []
    left_out = []
    theirs = replayed[base.quant, base.engine]
    for draft in drafts:
        if draft is base:
            continue
        try:
            type_name, tensors = _changed(file, _file(draft))
            mine = replayed[draft.quant, draft.engine]
            found.append((type_name, tensors, _lost(mine, theirs)))
        except _NothingToldError as error:
            left_out.append((draft.quant, str(error)))
    # Where one draft changed a tensor and another the whole group, the tensor's own figure stays.
    found.sort(key=lambda entry: -len(entry[1]))
    changed = {name for _, tensors, _ in found for name in tensors}
    lost: dict[str, dict[str, float]] = {}
    for tensor in file.tensors:
        if tensor.name in changed:  # as the reference has it, nothing is lost
            lost.setdefault(tensor.type_name, {})[tensor.name] = 0.0
    for type_name, tensors, share in found:
        lost.setdefault(type_name, {}).update(dict.fromkeys(tensors, share))
    groups = _groups(file)
    measured = {groups[name] for name in changed}
    columns = tuple(t.name for t in file.tensors if len(t.shape) > 1 and groups[t.name] in measured)
    return AcceptanceTable(base.quant, len(theirs.ids), lost, columns, tuple(left_out))


def write_acceptance_csv(table: AcceptanceTable, path: Path) -> None:
    """Write ``table``, whole or not at all; InputError where it says nothing."""
    if not table.lost:
        raise InputError(
            f"no draft differs from {table.reference} in one tensor group alone, by one type"
            + "".join(f"\n  {name}: {why}" for name, why in table.left_out),
            hint="sweep one group over types, with all else as in the reference",
        )
    columns = table.tensors
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("QTYPE", *columns))
    for type_name, row in sorted(table.lost.items()):
        cells = (f"{max(row[name], 0.0):.6f}" if name in row else "" for name in columns)
        writer.writerow((type_name, *cells))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def _file(draft: Draft) -> GgufFile:
    path = Path(draft.path) if draft.path else None
    if path is None or not path.is_file():
        raise _NothingToldError("its file is not there any more")
    return header(path)


def _changed(reference: GgufFile, draft: GgufFile) -> tuple[str, tuple[str, ...]]:
    """The one type that tensors of one group have become, and their names."""
    before = {t.name: t.type_name for t in reference.tensors}
    after = {t.name: t.type_name for t in draft.tensors}
    if before.keys() != after.keys():
        raise _NothingToldError("it has other tensors")
    changed = tuple(name for name in before if after[name] != before[name])
    if not changed:
        raise _NothingToldError("its tensors have the reference's types")
    of = _groups(reference)
    groups = dict.fromkeys(of[name] for name in changed)
    if len(groups) > 1:
        raise _NothingToldError(f"it differs in {len(groups)} groups: {', '.join(groups)}")
    types = dict.fromkeys(after[name] for name in changed)
    if len(types) > 1:
        raise _NothingToldError(f"what differs has become {len(types)} types: {', '.join(types)}")
    return next(iter(types)), changed


def _groups(file: GgufFile) -> dict[str, Group]:
    """Of every tensor."""
    names = [t.name for t in file.tensors]
    architecture, layers = file.string("general.architecture") or "", mtp_layers_of(names)
    return {name: group_of(name, architecture, layers) for name in names}


def _lost(mine: ReplayedPrompts, reference: ReplayedPrompts) -> float:
    """Share of the reference's acceptance that is lost, on the prompts that both replayed."""
    if (mine.n_max, mine.cache_type) != (reference.n_max, reference.cache_type):
        raise _NothingToldError("it was replayed at another draft length or with another cache")
    both = frozenset(mine.ids) & frozenset(reference.ids)
    rate, of_reference = _rate(mine, both), _rate(reference, both)
    if rate is None or not of_reference:
        raise _NothingToldError("too little was replayed of both")
    return 1.0 - rate / of_reference


def _rate(replay: ReplayedPrompts, ids: frozenset[str]) -> float | None:
    """accepted / drafted over the prompts ``ids``; None where nothing was drafted."""
    rows = zip(replay.ids, replay.accepted, replay.drafted, strict=True)
    kept = [(accepted, drafted) for id, accepted, drafted in rows if id in ids]
    drafted = sum(drafted for _, drafted in kept)
    return sum(accepted for accepted, _ in kept) / drafted if drafted else None
