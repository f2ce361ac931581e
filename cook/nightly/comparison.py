"""``cook report --against``: a record judged against an earlier one, or a history's last good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.errors import GateError, InputError
from cook.nightly.gates import Judgement, Policy, Verdict, judge
from cook.nightly.history import History, read_history
from cook.nightly.night import night_of
from cook.output import Column, Output
from cook.record.record import Record, read_record
from cook.units import plural

HISTORY_SUFFIX = ".jsonl"


def compare(record: Record, against: Path, policy: Policy | None = None) -> Judgement:
    """Every gate of ``record`` against ``against``: a history (.jsonl) or another record.

    InputError where there is nothing to compare with.
    """
    policy = policy or Policy()
    if against.suffix != HISTORY_SUFFIX:
        return judge(night_of(record), night_of(read_record(against)), policy)
    if not against.is_file():
        raise InputError(f"{against}: no such history", hint="`cook sweep PIPELINE` writes one")
    history = read_history(against)
    night = night_of(record)
    # A record does not know which cell of a pipeline it was; what it measured says so.
    earlier = [
        n for n in history.nights if n.series[1:] == night.series[1:] and n.created < night.created
    ]
    if not any(n.good for n in earlier):
        raise InputError(
            f"{against}: no earlier good night of {night.recipe} with this text, these engines "
            "and this machine",
            hint="compare with a record of your choice: --against RECORD",
        )
    night = replace(night, cell=earlier[-1].cell)
    before = History(history.path, tuple(earlier), history.warnings)
    return judge(night, before.last_good(night), policy, before)


def as_document(judgement: Judgement | None) -> dict[str, object] | None:
    """The judgement for ``--json``, without the nights' own columns."""
    if judgement is None:
        return None
    before = judgement.before.created if judgement.before else None
    return {
        "before": before,
        "findings": judgement.findings,
        "causes": judgement.causes,
        "notes": judgement.notes,
    }


def show(judgement: Judgement, output: Output) -> None:
    """The findings as a table, what is worse first; notes on stderr."""
    order = [Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.SAME, Verdict.NOT_JUDGED]
    found = sorted(judgement.findings, key=lambda f: order.index(f.verdict))
    output.table(
        [
            (
                f.verdict,
                f.gate,
                f.subject,
                f.text,
                None if f.p_value is None else f"{f.p_value:.2g}",
            )
            for f in found
        ],
        ["verdict", "gate", "of", "then and now", Column("p", "right")],
    )
    if judgement.before is not None:
        output.say(f"compared with {judgement.before.created}")
    for note in judgement.notes:
        output.say(note)


def raise_for(judgement: Judgement) -> None:
    """GateError (exit 4) where something is worse for certain."""
    if worse := judgement.regressions:
        named = ", ".join(f"{f.gate} of {f.subject}" for f in worse[:3])
        raise GateError(f"{plural(len(worse), 'regression')}: {named}")
