"""The tables of a record: one row a candidate or a quant, what was not measured left empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cook.record.record import Candidate, Draft, Objective, Record
from cook.report.document import Block, Cells, Section, Table, Text, figures
from cook.report.speedups import DECODE, WHOLE, speed_notes, speed_of, speedup_text
from cook.report.texts import counts, divergence, perplexity, tokens_per_s
from cook.units import number, size

QUALITY = ("bpw", "PPL", "KLD")
_SHORT = {
    "decode_speed": ("decode t/s", "decode speedup"),
    "acceptance_length": ("tokens a cycle", "end-to-end t/s"),
}
REPLAYED = "~"
"""Before counts of a replay and speeds of a forecast: the candidate did not run live."""
SHOWN = 10
"""Rows that the short table has at most, for a terminal of the usual height."""
FIRST = 12
"""Rows in sight on a page at most; the rest is folded away."""


def section(record: Record) -> Section:
    """One row a candidate, or a quant where nothing was scored."""
    if not record.drafts and not record.candidates:
        why = "the record has no quants and no candidates"
        return Section("candidates", "All quants", absent=why)
    if not record.candidates:
        sight, rest = record.drafts[:FIRST], record.drafts[FIRST:]
        folded = (drafts_table(rest, f"{len(rest)} more quants"),) if rest else ()
        return Section("candidates", "All quants", blocks=(drafts_table(sight), *folded))
    first = to_look_at(record)[:FIRST]
    others = [c for c in in_order(record) if c not in first]
    blocks: list[Block] = [candidates_table(record, first)]
    if notes := [f"{note}." for note in speed_notes(record)]:
        blocks.append(Text(" ".join(notes)))
    if others:
        blocks.append(candidates_table(record, others, f"{len(others)} more candidates"))
    lead = "Speedups are t/s over no draft's t/s. The pick is marked; a dash was not measured."
    return Section("candidates", "All candidates", lead, tuple(blocks))


def candidates_table(
    record: Record, candidates: Iterable[Candidate], title: str | None = None
) -> Table:
    """What is known of each; the last cell says where its figures come from."""
    chance = (f"chance within {100 * record.pick.margin:g}%",) if record.pick.within else ()
    titles = (
        *("candidate", "size", *QUALITY, "accepted/drafted", "acceptance", "tokens a cycle"),
        *("decode t/s", "decode speedup", "end-to-end t/s", _speedup_title(record)),
        *(*chance, "figures"),
    )
    rows: list[Cells] = []
    for candidate in candidates:
        draft = record.draft(candidate.draft)
        # Acceptance is of live requests; or of the replay of all prompts, where a candidate had
        # only some of them live, did not run, or is picked by counts.
        replayed = candidate.predicted.figures if candidate.predicted else None
        decode, whole = (speed_of(record, candidate, one) for one in (DECODE, WHOLE))
        by_counts = not Objective(record.pick.maximize).timed
        some_live = whole is not None and whole.part is not None
        found = (replayed if by_counts or some_live else None) or candidate.live or replayed
        within = record.pick.within.get(candidate.name)
        rows.append(
            (
                candidate.name,
                size(draft.file_bytes) if draft else None,
                *quality_cells(draft),
                counts(found),
                number(found.acceptance_rate, ".1%") if found else None,
                number(found.acceptance_length, ".2f") if found else None,
                tokens_per_s(decode.tokens_per_s) if decode else None,
                speedup_text(decode.speedup, None) if decode else None,
                tokens_per_s(whole.tokens_per_s) if whole else None,
                whole.text if whole else None,
                *((number(within, ".0%"),) if record.pick.within else ()),
                whole.kind if whole else None,
            )
        )
    return figures(titles, rows, title=title, pick=record.pick.candidate, words=("figures",))


def short_table(record: Record, candidates: Iterable[Candidate]) -> Table:
    """The columns of :func:`candidates_table` that a choice is made by."""
    own = _SHORT.get(record.pick.maximize, ("end-to-end t/s",))
    return candidates_table(record, candidates).only(
        ("candidate", "size", "acceptance", *own, _speedup_title(record), "figures")
    )


def speeds_table(record: Record, candidates: Iterable[Candidate]) -> Table:
    """The columns of :func:`candidates_table` that are speeds."""
    titles = ("candidate", "decode t/s", "end-to-end t/s", _speedup_title(record), "figures")
    return candidates_table(record, candidates, "Figures").only(titles)


def drafts_table(drafts: Iterable[Draft], title: str | None = None) -> Table:
    """Quants of a recipe without a score."""
    rows = []
    for draft in drafts:
        bpw, found, kld = quality_cells(draft)
        rows.append((draft.quant, size(draft.file_bytes), bpw, found or draft.quality_reason, kld))
    return figures(("quant", "size", *QUALITY), rows, title=title)


def quality_cells(draft: Draft | None) -> tuple[str | None, str | None, str | None]:
    """Bits per weight, perplexity and KLD."""
    if draft is None:
        return None, None, None
    return number(draft.bpw, ".2f"), perplexity(draft.quality), divergence(draft.quality)


def _speedup_title(record: Record) -> str:
    return f"end-to-end speedup ({record.pick.confidence:.0%})"


def in_order(record: Record) -> list[Candidate]:
    """The pick, then the others by the speed that is shown, or by the count that is sought."""
    objective = Objective(record.pick.maximize)
    order = {} if objective.timed else {n: i for i, n in enumerate(record.pick.ranking)}
    shown = objective if objective.timed else WHOLE

    def place(candidate: Candidate) -> tuple[bool, int, float]:
        name, found = candidate.name, speed_of(record, candidate, shown)
        speed = found.tokens_per_s if found else 0.0
        return name != record.pick.candidate, order.get(name, len(order)), -speed

    return sorted(record.candidates, key=place)


def to_look_at(record: Record) -> list[Candidate]:
    """Of :func:`in_order`, no draft, what ran live and the first of each draft."""
    kept: set[tuple[str, str | None]] = set()
    short = []
    for candidate in in_order(record):
        draft = (candidate.engine, candidate.draft)
        if candidate.live is not None or candidate.draft is None or draft not in kept:
            short.append(candidate)
        kept.add(draft)
    return short


def in_short(record: Record, every: Sequence[Candidate]) -> list[Candidate]:
    """Of ``every``, as many as a screen has room for, the pick and no draft always."""
    must = [c for c in every if c.draft is None or c.name == record.pick.candidate]
    rest = [c for c in every if c not in must][: max(0, SHOWN - len(must))]
    return [c for c in every if c in must or c in rest]
