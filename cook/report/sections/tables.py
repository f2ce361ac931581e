"""Sections that are tables: one row a candidate or a quant, the same output, what was warned of,
provenance. What was not measured is left empty."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from cook.record.record import Candidate, Draft, Objective, Record
from cook.report.commands import ran_as
from cook.report.compared import label_of
from cook.report.document import Block, Cells, Code, Items, Section, Table, figures
from cook.report.public import NAMES_NOTE
from cook.report.speedups import DECODE, WHOLE, speed_notes, speed_of, speedup_text
from cook.report.texts import counts, divergence, perplexity, tokens_per_s
from cook.units import number, size

MOST_REASONS = 200
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


def candidates(record: Record) -> Section:
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
        blocks.append(" ".join(notes))
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


def output(record: Record) -> Section:
    """Whether replies are the same as without a draft, token by token."""
    title = "Same output as without a draft"
    checked = [(c.name, c.output) for c in record.candidates if c.output is not None]
    if not checked:
        why = "no replies were compared with those without a draft"
        return Section("output", title, absent=why)
    first = checked[0][1]
    how = "measured on this engine" if first.gap_is_measured else "from the literature"
    drawn = ", or so small a shift lets one draw give either" if record.temperature else ""
    lead = (
        "Speculation changes speed, not text, except that a batch may round otherwise than single "
        f"tokens do. A near tie: the target's two logits were at most {first.near_tie_gap:.3g} "
        f"apart ({how}){drawn}. The last column counts differences that the target alone makes "
        "as well, at that batch width."
    )
    table = figures(
        (
            *("candidate", "identical", "near ties", "larger gaps", "unknown", "largest gap"),
            *("earliest at token", "so without a draft"),
        ),
        (
            (
                name,
                f"{check.identical}/{check.replies}",
                str(check.near_ties),
                str(check.material),
                str(check.unknown),
                number(check.largest_gap, ".3f"),
                str(min(check.first_positions)) if check.first_positions else None,
                f"{check.without_draft}/{tried}" if (tried := check.without_draft_tried) else None,
            )
            for name, check in checked
        ),
        title=None,
        pick=record.pick.candidate,
    )
    uncontrolled = tuple(
        f"{name}: not controlled: {check.not_controlled}"
        for name, check in checked
        if check.not_controlled
    )
    notes = (Items(uncontrolled, marked=True),) if uncontrolled else ()
    return Section("output", title, lead, (table, *notes))


def warnings(record: Record) -> Section:
    """All warnings, most urgent first; who could not win or did not run."""
    title = "Warnings and what was left out"
    failed = tuple(f"{step.label} failed: {step.error}" for step in record.steps if step.error)
    blocks: list[Block] = [
        Items(lines, marked=True) for lines in (failed, record.warnings) if lines
    ]
    reasons = {e.candidate: e.reason for e in (*record.pick.excluded, *record.left_out)}
    if reasons:
        rows = [*reasons.items()][:MOST_REASONS]
        what = f"{len(reasons)} that could not win or did not run"
        blocks.append(figures(("cannot win", "why"), rows, title=what, words=("why",)))
    return Section("warnings", title, blocks=tuple(blocks or ["None."]))


def provenance(record: Record) -> Section:
    """What made this record, so that it can be made again: machine, engines, files, steps."""
    machine = record.machine
    rows: list[Cells] = [
        ("recipe", record.recipe),
        ("recipe SHA-256", record.recipe_sha256),
        ("made", record.created),
        ("by", f"cook {record.cook}, record schema {record.schema_version}"),
        ("command", shlex.join(record.command)),
        ("processor", f"{machine.processor}, {machine.cores} cores used"),
        ("memory", size(machine.memory_bytes)),
        ("accelerators", ", ".join(machine.accelerators) or None),
        ("system", machine.system),
    ]
    for name, engine in record.engines.items():
        commit = f", commit {engine.commit}" if engine.commit else ""
        rows.append((f"engine {name}", f"{engine.flavour}, {engine.build}{commit}"))
        rows.append((f"engine {name} SHA-256", engine.digest))
    if record.target:
        rows.append(("target", f"{record.target} ({size(record.target_bytes)})"))
    if record.prompts:
        sampling = f"temperature {record.temperature:g}, at most {record.max_tokens} tokens"
        rows.append(("prompts", f"{record.prompts}, SHA-256 {record.prompts_sha256}"))
        rows.append(("sampling", sampling))
    files = ((label_of(record, d), size(d.file_bytes), d.key, d.path) for d in record.drafts)
    steps = ((s.label, s.state, number(s.seconds, ".1f"), s.key[:16]) for s in record.steps)
    file_titles, step_titles = ("quant", "size", "key", "file"), ("step", "state", "seconds", "key")
    blocks: list[Block] = [
        figures(("what", ""), (row for row in rows if row[1]), title=None, words=("",)),
        figures(file_titles, files, title="Draft files", words=("key", "file")),
        figures(step_titles, steps, title="Steps", words=("state", "key")),
    ]
    commands = [f"# {s.label}\n{shlex.join(ran_as(s.command))}" for s in record.steps if s.command]
    if commands:
        blocks.append(Code("\n\n".join(commands), title="Commands of the steps"))
    if record.recipe_text:
        blocks.append(Code(record.recipe_text, title="The recipe"))
    return Section("provenance", "Provenance", NAMES_NOTE, tuple(blocks))
