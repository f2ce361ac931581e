"""What a search found, on a terminal."""

from __future__ import annotations

from cook.output import Output
from cook.record.search_record import Finalist, search_json
from cook.search.run import Found
from cook.text_table import Column
from cook.units import plural, size


def show(found: Found, output: Output) -> None:
    """The finalists, the verdict, and where recipe and record lie."""
    record = found.record
    output.emit(search_json(record))
    ranked = sorted(
        record.finalists, key=lambda f: f.replayed.acceptance_length or 0.0, reverse=True
    )
    columns: list[Column | str] = ["finalist", Column("size", "right")]
    columns += [Column(name, "right") for name in ("tokens a cycle", "against the given", "KLD")]
    output.table([_row(f) for f in ranked], columns)
    for warning in record.warnings:
        output.warn(warning)
    gap = record.allocation.gap if record.allocation is not None else 0.0
    output.say(
        f"{plural(len(record.evaluations), 'mix', 'mixes')} evaluated on "
        f"{plural(len(record.prompts.search), 'prompt')}, judged on "
        f"{len(record.prompts.verdict)} others; the allocation is within {gap:.2%} of the least "
        "damage there is"
    )
    output.say(record.sentence)
    if record.found_recipe is not None:
        output.data(str(found.recipe_path))
        output.say(f"confirm it: cook build {found.recipe_path}")
    output.say(f"kept as {found.record_path}")


def _row(finalist: Finalist) -> list[str | None]:
    told = finalist.against_given
    against = None
    if told is not None:
        against = f"{told.value:+.3f}"
        if told.interval is not None:
            against += f" ({told.interval.low:+.3f} to {told.interval.high:+.3f})"
    length = finalist.replayed.acceptance_length
    kld = finalist.replayed.mean_kld
    return [
        finalist.name,
        size(finalist.size_bytes),
        f"{length:.3f}" if length is not None else None,
        against,
        f"{kld:.4f}" if kld is not None else None,
    ]
