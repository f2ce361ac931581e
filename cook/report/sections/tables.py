"""Sections that are tables: the same output, what was warned of, provenance."""

from __future__ import annotations

import shlex

from cook.record.record import Record
from cook.report.commands import ran_as
from cook.report.compared import label_of
from cook.report.document import Block, Cells, Code, Items, Section, Text, figures
from cook.report.public import NAMES_NOTE
from cook.units import number, size

MOST_REASONS = 200


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
    return Section("warnings", title, blocks=tuple(blocks or [Text("None.")]))


def provenance(record: Record) -> Section:
    """What made this record, so that it can be made again: machine, engines, files, steps."""
    files = ((label_of(record, d), size(d.file_bytes), d.key, d.path) for d in record.drafts)
    steps = ((s.label, s.state, number(s.seconds, ".1f"), s.key[:16]) for s in record.steps)
    file_titles, step_titles = ("quant", "size", "key", "file"), ("step", "state", "seconds", "key")
    blocks: list[Block] = [
        figures(("what", ""), (row for row in _made(record) if row[1]), title=None, words=("",)),
        figures(file_titles, files, title="Draft files", words=("key", "file")),
        figures(step_titles, steps, title="Steps", words=("state", "key")),
    ]
    commands = [f"# {s.label}\n{shlex.join(ran_as(s.command))}" for s in record.steps if s.command]
    if commands:
        blocks.append(Code("\n\n".join(commands), title="Commands of the steps"))
    if record.recipe_text:
        blocks.append(Code(record.recipe_text, title="The recipe"))
    return Section("provenance", "Provenance", NAMES_NOTE, tuple(blocks))


def _made(record: Record) -> list[Cells]:
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
    return rows
