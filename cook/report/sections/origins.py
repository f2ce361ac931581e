"""Section: what made this record, so that it can be made again."""

from __future__ import annotations

import shlex

from cook.record.record import Record
from cook.report.compared import label_of
from cook.report.document import Block, Code, Section, Table
from cook.units import size

TITLE = "Provenance"


def section(record: Record) -> Section:
    """Machine, engines, inputs, files, steps with their commands, and the recipe."""
    blocks: list[Block] = [_made(record), _files(record), _steps(record)]
    commands = _commands(record)
    if commands:
        blocks.append(Code(commands, title="Commands of the steps"))
    if record.recipe_text:
        blocks.append(Code(record.recipe_text, title="The recipe"))
    return Section("provenance", TITLE, blocks=tuple(blocks))


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
        (("draft file", "left"), ("size", "right"), ("key", "left"), ("path", "left")),
        tuple((label_of(record, d), size(d.file_bytes), d.key, d.path) for d in record.drafts),
        title="Draft files",
    )


def _steps(record: Record) -> Table:
    return Table(
        (("step", "left"), ("state", "left"), ("seconds", "right"), ("key", "left")),
        tuple(
            (s.label, s.state, f"{s.seconds:.1f}" if s.seconds is not None else None, s.key[:16])
            for s in record.steps
        ),
        title="Steps",
    )


def _commands(record: Record) -> str:
    told = [f"# {s.label}\n{shlex.join(s.command)}" for s in record.steps if s.command]
    return "\n\n".join(told)
