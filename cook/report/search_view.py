"""From a search's record to a report's document."""

from __future__ import annotations

import shlex

from cook.record.search_record import EvaluatedMix, SearchRecord
from cook.report.document import (
    Code,
    Document,
    Fact,
    Headline,
    Items,
    Section,
    Table,
    figures,
    subtitle,
)
from cook.report.earnings import earning_text, earnings
from cook.report.numbers import number
from cook.report.public import public_search
from cook.report.search_plots import bits_map, earning_map, front_plot
from cook.report.search_show import explained, interval_text, shown_search
from cook.report.show import PrintedTable
from cook.units import duration, plural, short_size

FINALISTS = "The finalists"
SPANS = "Which spans earn their bits"
FRONT = "Size against acceptance length"


def search_document(record: SearchRecord) -> Document:
    """The whole report of a search, as others may see it."""
    record = public_search(record)
    return Document(
        title=record.recipe,
        subtitle=subtitle(record, record.engine),
        headline=_headline(record),
        evidence=_evidence(record),
        answers=(),
        first=_front(record),
        sections=(
            _finalists(record),
            _spans(record),
            _warnings(record),
            _models(record),
            _front_table(record),
            _evaluations(record),
            _provenance(record),
        ),
    )


def _headline(record: SearchRecord) -> Headline:
    best = next((f for f in record.finalists if f.name == record.best), None)
    facts = []
    if best is not None:
        length = best.replayed.acceptance_length
        facts = [
            Fact("size", short_size(best.size_bytes) or "", _asked(record)),
            Fact("tokens a cycle", number(length, ".2f") or "-", f"drafts of {record.aim.n_max}"),
        ]
        against = interval_text(None, best.against_given)
        if against is not None:
            given = record.finalist("given")
            note = f"against {given.name}" if given else ""
            facts.append(Fact("over the given", against.partition(" ")[0], f"{note} {against}"))
    if record.allocation is not None:
        note = "to the least damage there is, by the measured costs"
        facts.append(Fact("gap", f"{record.allocation.gap:.2%}", note))
    return Headline(
        title=f"{record.verdict}: {record.best}",
        why=record.sentence,
        facts=tuple(facts),
        command=None,
        command_absent="a search writes a recipe, and `cook build` makes and scores it",
        warnings=len(record.warnings),
    )


def _asked(record: SearchRecord) -> str:
    return f"at most {short_size(record.aim.max_bytes)} was asked for"


def _evidence(record: SearchRecord) -> tuple[Fact, ...]:
    parts = record.prompts
    return (
        Fact("judged on", f"{plural(len(parts.verdict), 'prompt')} that the search did not see"),
        Fact("searched on", plural(len(parts.search), "prompt")),
        Fact(
            "cost",
            f"{plural(len(record.evaluations), 'mix', 'mixes')} replayed in "
            f"{duration(record.seconds)}",
        ),
    )


def _front(record: SearchRecord) -> Section:
    plot = front_plot(record)
    if plot is None:
        return Section("search-front", FRONT, absent="no finalist drafted anything")
    lead = (
        "The finalists on prompts that the search did not see, with intervals; filled: the "
        "search's own. Those of one size stand beside each other. The line is the front as "
        "predicted, scaled to these prompts; dotted: the size that was asked for."
    )
    return Section("search-front", FRONT, lead, (plot,))


def _finalists(record: SearchRecord) -> Section:
    if not record.finalists:
        return Section("finalists", FINALISTS, absent="no mix came to the final")
    lead = (
        "All on the same prompts, which decided nothing before. Differences are paired by prompt, "
        f"intervals at {record.aim.confidence:.0%}."
    )
    return Section("finalists", FINALISTS, lead, (_printed(shown_search(record).wide),))


def _spans(record: SearchRecord) -> Section:
    found = earnings(record)
    if not found:
        return Section("spans", SPANS, absent="no span of the returned mix was measured")
    lead = (
        "A span is the tensors of one kind in a range of layers. Its bits earn the KLD that its "
        "next smaller type would add, a byte, over what more bytes would save elsewhere."
    )
    plots = tuple(p for p in (bits_map(record), earning_map(record)) if p is not None)
    table = _printed(explained(record).wide, title="Figures")
    return Section("spans", SPANS, lead, (*plots, Items(tuple(map(earning_text, found))), table))


def _warnings(record: SearchRecord) -> Section:
    if not record.warnings:
        return Section("warnings", "Warnings", absent="there are none")
    return Section("warnings", "Warnings", blocks=(Items(record.warnings, marked=True),))


def _models(record: SearchRecord) -> Section:
    """What was predicted by what, and how well."""
    title = "How well the search predicts"
    shown = shown_search(record)
    lines = (*shown.notes, *(a for a in shown.answers if a.startswith("allocation: ")))
    if not lines:
        return Section("models", title, absent="too little was measured to fit anything")
    lead = "Errors are on mixes that nothing was fitted to."
    return Section("models", title, lead, (Items(lines),), folded=True)


def _front_table(record: SearchRecord) -> Section:
    title = "The front, size by size"
    if not record.front:
        return Section("front", title, absent="nothing was allocated")
    rows = (
        (
            short_size(p.size_bytes),
            number(p.kld, ".4g"),
            number(p.acceptance_length, ".3f"),
            number(p.replayed.acceptance_length if p.replayed else None, ".3f"),
            number(p.decode_speed, ".1f"),
        )
        for p in record.front
    )
    titles = ("size", "KLD added", "tokens a cycle, predicted", "replayed", "decode t/s, predicted")
    lead = "On the prompts that the search saw."
    return Section("front", title, lead, (figures(titles, rows, title=None),), folded=True)


def _evaluations(record: SearchRecord) -> Section:
    title = "Every evaluation"
    if not record.evaluations:
        return Section("evaluations", title, absent="nothing was replayed")
    table = Table(
        columns=(
            ("why", "left"),
            ("differs from the reference in", "left"),
            ("size", "right"),
            ("prompts", "right"),
            ("tokens a cycle", "right"),
            ("KLD", "right"),
            ("dropped", "left"),
        ),
        rows=tuple(map(_evaluation, record.evaluations)),
    )
    return Section(
        "evaluations", title, f"The reference: {record.reference}.", (table,), folded=True
    )


def _evaluation(mix: EvaluatedMix) -> tuple[str | None, ...]:
    return (
        f"{mix.purpose.replace('_', ' ')}: {mix.why}",
        ", ".join(f"{span} {type_name}" for span, type_name in mix.mix.items()) or None,
        short_size(mix.size_bytes),
        str(mix.replayed.prompts),
        number(mix.replayed.acceptance_length, ".3f"),
        number(mix.replayed.mean_kld, ".4g"),
        mix.dropped,
    )


def _provenance(record: SearchRecord) -> Section:
    lines = (
        f"made by `{shlex.join(record.command)}`",
        f"cook {record.cook}, engine {record.engine}: {record.identity.build}",
        f"target {record.target}",
        f"recipe {record.recipe} (SHA-256 {record.recipe_sha256[:16]})",
    )
    codes = tuple(
        Code(text, title)
        for text, title in (
            (record.found_recipe, "The recipe that was found"),
            (record.recipe_text, "The recipe given"),
        )
        if text
    )
    return Section("provenance", "Where it comes from", "", (Items(lines), *codes), folded=True)


def _printed(table: PrintedTable, title: str | None = None) -> Table:
    return Table(table.columns, table.rows, title=title, strong=table.picked)
