"""``cook report --against``: a record judged against an earlier one, or against a history."""

from __future__ import annotations

from pathlib import Path

from cook.errors import GateError, InputError
from cook.nightly.gates import Judgement, Verdict, judge
from cook.nightly.history import History, ReferenceNights, read_history
from cook.nightly.night import night_of
from cook.nightly.pipeline import GatesSpec
from cook.output import Output
from cook.record.record import Record, read_record
from cook.units import plural


def compare(record: Record, against: Path) -> Judgement:
    """Every gate of ``record`` against ``against``: a history (.jsonl) or another record.

    InputError where there is nothing to compare with.
    """
    night = night_of(record)
    if against.suffix != ".jsonl":
        other = night_of(read_record(against))
        return judge(night, ReferenceNights(other, (other,), (other,), (other,)), GatesSpec())
    if not against.is_file():
        raise InputError(f"{against}: no such history", hint="`cook sweep PIPELINE` writes one")
    # A record does not know which cell of a pipeline it was; what it measured says so.
    earlier = tuple(
        n
        for n in read_history(against).nights
        if n.series[1:] == night.series[1:] and n.created < night.created
    )
    found = History(against, earlier).reference(earlier[-1].series) if earlier else None
    if found is None:
        raise InputError(
            f"{against}: no earlier good night of {record.recipe} with this text, these engines "
            "and this machine",
            hint="compare with a record of your choice: --against RECORD",
        )
    return judge(night, found, GatesSpec())


def as_document(judgement: Judgement | None) -> dict[str, object] | None:
    """The judgement for ``--json``, without the nights' own columns."""
    if judgement is None:
        return None
    before = judgement.accepted.created if judgement.accepted else None
    return {"before": before, "findings": judgement.findings, "notes": judgement.notes}


def show(judgement: Judgement, output: Output) -> None:
    """The findings as a table, what is worse first; notes on stderr."""
    order = [Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.SAME, Verdict.NOT_JUDGED]
    found = sorted(judgement.findings, key=lambda f: order.index(f.verdict))
    rows = [(f.verdict, f.gate, f.subject, f.text) for f in found]
    output.table(rows, ["verdict", "gate", "of", "then and now"])
    if judgement.accepted is not None:
        output.say(f"compared with {judgement.accepted.created}")
    for note in judgement.notes:
        output.say(note)


def raise_for(judgement: Judgement) -> None:
    """GateError (exit 4) where something is worse for certain."""
    if worse := judgement.regressions:
        named = ", ".join(f"{f.gate} of {f.subject}" for f in worse[:3])
        raise GateError(f"{plural(len(worse), 'regression')}: {named}")
