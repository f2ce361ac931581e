"""Sections that are tables: all candidates, the same output, what was warned of, provenance."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from cook.record.measured import Figures, OutputCheck
from cook.record.record import Candidate, Record
from cook.report.commands import ran_as
from cook.report.compared import Basis, draft_of, finite, label_of
from cook.report.document import Block, Code, Items, Section, Table, Text, figures
from cook.report.numbers import counts, number
from cook.report.public import SAID
from cook.report.speedups import speedup
from cook.report.table import draft_columns, draft_row, in_order, to_look_at
from cook.units import size

Told = Callable[[Record, Candidate], str | None]
REPLAYED = "~"
"""Before counts that are those of a replay: the candidate did not run live."""

FIRST = 12
"""Candidates in sight at most; the rest is folded away."""
MOST_REASONS = 200


def candidates(record: Record) -> Section:
    """One row a candidate, or a quant where nothing was scored; speeds first, live ones apart."""
    if not record.candidates:
        return _quants(record)
    sight = to_look_at(record)[:FIRST]
    folded = [c for c in in_order(record) if c not in sight]
    columns = _columns(record)
    heads = (("candidate", "left"), *((title, "right") for title, _ in columns))
    names = [c.name for c in sight]
    pick = record.pick.candidate

    def row(candidate: Candidate) -> tuple[str | None, ...]:
        return candidate.name, *(cell(record, candidate) for _, cell in columns)

    rows = tuple(map(row, sight))
    blocks: list[Block] = [Table(heads, rows, strong=names.index(pick) if pick in names else None)]
    if folded:
        blocks.append(Table(heads, tuple(map(row, folded)), f"{len(folded)} more candidates"))
    if any(c.live is None and c.predicted is not None for c in record.candidates):
        told = f"{REPLAYED} marks counts of a replay: that candidate did not run live."
        blocks.append(Text(told, quiet=True))
    lead = (
        "The pick is marked; a dash is what was not measured. Speedups are of the end-to-end speed."
    )
    return Section("candidates", "All candidates", lead, tuple(blocks))


def _columns(record: Record) -> tuple[tuple[str, Told], ...]:
    live: tuple[tuple[str, Told], ...] = (
        ("live t/s", lambda r, c: number(c.live.end_to_end_speed, ".2f") if c.live else None),
        ("live speedup", lambda r, c: _speedup(r, c, "live")),
    )
    guessed: tuple[tuple[str, Told], ...] = (
        ("predicted t/s", lambda r, c: number(_guess(c), ".2f")),
        ("predicted speedup", lambda r, c: _speedup(r, c, "predicted")),
    )
    rest: tuple[tuple[str, Told], ...] = (
        ("acceptance", lambda r, c: _counted(c, lambda f: number(f.acceptance_rate, ".1%"))),
        ("tokens a cycle", lambda r, c: _counted(c, lambda f: number(f.acceptance_length, ".2f"))),
        ("accepted/drafted", lambda r, c: _counted(c, counts)),
        ("live decode t/s", lambda r, c: number(c.live.decode_speed, ".2f") if c.live else None),
        ("size", lambda r, c: size(d.file_bytes) if (d := draft_of(r, c)) else None),
    )
    return (
        *(live if any(c.live for c in record.candidates) else ()),
        *(guessed if any(c.predicted for c in record.candidates) else ()),
        *rest,
    )


def _speedup(record: Record, candidate: Candidate, kind: Basis) -> str | None:
    found = speedup(record, candidate, kind)
    if found is None or candidate.draft is None:
        return None
    return found.told if kind == "live" else f"{found.ratio:.2f}x"


def _guess(candidate: Candidate) -> float | None:
    return finite(candidate.predicted.figures.end_to_end_speed) if candidate.predicted else None


def _counted(candidate: Candidate, told: Callable[[Figures], str | None]) -> str | None:
    """A count of the live run, or of the replay with its mark."""
    found = candidate.live or (candidate.predicted.figures if candidate.predicted else None)
    if found is None or finite(found.acceptance_rate) is None:
        return None
    text = told(found)
    return text if candidate.live or text is None else f"{REPLAYED}{text}"


def _quants(record: Record) -> Section:
    rows = tuple(draft_row(draft) for draft in record.drafts)
    if not rows:
        why = "the record has no quants and no candidates"
        return Section("candidates", "All quants", absent=why)
    blocks = [Table(draft_columns(), rows[:FIRST])]
    if rows[FIRST:]:
        title = f"{len(rows) - FIRST} more quants"
        blocks.append(Table(draft_columns(), rows[FIRST:], title=title))
    return Section("candidates", "All quants", blocks=tuple(blocks))


def output(record: Record) -> Section:
    """Whether replies are the same as without a draft, token by token."""
    title = "Same output as without a draft"
    checked = [(c.name, c.output) for c in record.candidates if c.output is not None]
    if not checked:
        why = "no replies were compared with those without a draft"
        return Section("output", title, absent=why)
    titles = (
        *("candidate", "identical", "near ties", "larger gaps", "unknown", "largest gap"),
        *("earliest at token", "so without a draft"),
    )
    rows = tuple((name, *_differences(check)) for name, check in checked)
    first = checked[0][1]
    how = "measured on this engine" if first.gap_is_measured else "from the literature"
    # Older records hold differences of logits under sampling as well, and no control.
    by_draws = record.temperature and (first.control or first.not_controlled)
    drawn = ", or so small a shift lets one draw give either" if by_draws else ""
    lead = (
        "Speculation changes speed, not text, except that a batch may round otherwise than single "
        f"tokens do. A near tie: the target's two logits were at most {first.near_tie_gap:.3g} "
        f"apart ({how}){drawn}. The last column counts differences that the target alone makes "
        "as well, at that batch width."
    )
    table = figures(titles, rows, title=None, pick=record.pick.candidate)
    untold = tuple(
        f"{name}: not controlled: {check.not_controlled}"
        for name, check in checked
        if check.not_controlled
    )
    told = (Items(untold, marked=True),) if untold else ()
    return Section("output", title, lead, (table, *told))


def _differences(check: OutputCheck) -> tuple[str | None, ...]:
    tried = check.without_draft_tried
    return (
        f"{check.identical}/{check.replies}",
        str(check.near_ties),
        str(check.material),
        str(check.unknown),
        number(check.largest_gap, ".3f"),
        str(min(check.first_positions)) if check.first_positions else None,
        f"{check.without_draft}/{tried}" if tried else None,
    )


def warnings(record: Record) -> Section:
    """Everything that was told, most urgent first; who could not win or did not run."""
    title = "Warnings and what was left out"
    blocks: list[Block] = []
    failed = [s for s in record.steps if s.error]
    if failed:
        blocks.append(Items(tuple(f"{s.label} failed: {s.error}" for s in failed), marked=True))
    if record.warnings:
        blocks.append(Items(record.warnings, marked=True))
    reasons = {e.candidate: e.reason for e in (*record.pick.excluded, *record.left_out)}
    if reasons:
        rows = tuple(reasons.items())
        told = f"{len(rows)} that could not win or did not run"
        heads = (("cannot win", "left"), ("why", "left"))
        blocks.append(Table(heads, rows[:MOST_REASONS], title=told))
    return Section("warnings", title, blocks=tuple(blocks or [Text("None.")]))


def provenance(record: Record) -> Section:
    """What made this record, so that it can be made again: machine, engines, files, steps."""
    blocks: list[Block] = [_made(record), _files(record), _steps(record)]
    commands = [
        f"# {step.label}\n{shlex.join(ran_as(step.command))}"
        for step in record.steps
        if step.command
    ]
    if commands:
        blocks.append(Code("\n\n".join(commands), title="Commands of the steps"))
    if record.recipe_text:
        blocks.append(Code(record.recipe_text, title="The recipe"))
    return Section("provenance", "Provenance", SAID, tuple(blocks))


def _made(record: Record) -> Table:
    machine = record.machine
    rows: list[tuple[str | None, ...]] = [
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
        rows.append(("prompts", f"{record.prompts}, SHA-256 {record.prompts_sha256}"))
        rows.append(
            ("sampling", f"temperature {record.temperature:g}, at most {record.max_tokens} tokens")
        )
    return Table((("what", "left"), ("", "left")), tuple(r for r in rows if r[1]))


def _files(record: Record) -> Table:
    return Table(
        (("quant", "left"), ("size", "right"), ("key", "left"), ("file", "left")),
        tuple((label_of(record, d), size(d.file_bytes), d.key, d.path) for d in record.drafts),
        title="Draft files",
    )


def _steps(record: Record) -> Table:
    return Table(
        (("step", "left"), ("state", "left"), ("seconds", "right"), ("key", "left")),
        tuple((s.label, s.state, number(s.seconds, ".1f"), s.key[:16]) for s in record.steps),
        title="Steps",
    )
