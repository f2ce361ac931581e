"""From a search's record to a report's document."""

from __future__ import annotations

import shlex

from cook.record.search_record import SearchRecord
from cook.report.document import Code, Document, Fact, Headline, Items, Section, figures, subtitle
from cook.report.earnings import earnings
from cook.report.public import public_search
from cook.report.search_plots import bits_map, earning_map, front_plot
from cook.report.search_show import (
    allocation_answer,
    finalists_table,
    interval_text,
    model_notes,
    spans_table,
)
from cook.units import duration, number, plural, short_size


def search_document(record: SearchRecord) -> Document:
    """The whole report of a search, as others may see it."""
    record = public_search(record)
    prompts = record.prompts
    mixes = plural(len(record.evaluations), "mix", "mixes")
    return Document(
        title=record.recipe,
        subtitle=subtitle(record, record.engine),
        headline=_headline(record),
        evidence=(
            Fact(
                "judged on", f"{plural(len(prompts.verdict), 'prompt')} that the search did not see"
            ),
            Fact("searched on", plural(len(prompts.search), "prompt")),
            Fact("cost", f"{mixes} replayed in {duration(record.seconds)}"),
        ),
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
        length = number(best.replayed.acceptance_length) or "-"
        asked = f"at most {short_size(record.aim.max_bytes)} was asked for"
        facts = [
            Fact("size", short_size(best.size_bytes) or "", asked),
            Fact("tokens a cycle", length, f"drafts of {record.aim.n_max}"),
        ]
        against, given = interval_text(best.against_given), record.finalist("given")
        if against is not None:
            note = f"against {given.name} {against}" if given else against
            facts.append(Fact("over the given", against.partition(" ")[0], note))
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


def _front(record: SearchRecord) -> Section:
    title, plot = "Size against acceptance length", front_plot(record)
    if plot is None:
        return Section("search-front", title, absent="no finalist drafted anything")
    lead = (
        "The finalists on prompts that the search did not see, with intervals; filled: the "
        "search's own. Those of one size stand next to each other. The line is the front as "
        "predicted, scaled to these prompts; dotted: the size that was asked for."
    )
    return Section("search-front", title, lead, (plot,))


def _finalists(record: SearchRecord) -> Section:
    if not record.finalists:
        return Section("finalists", "The finalists", absent="no mix came to the final")
    lead = (
        "All on the same prompts, which decided nothing before. Differences are paired by prompt, "
        f"intervals at {record.aim.confidence:.0%}."
    )
    return Section("finalists", "The finalists", lead, (finalists_table(record),))


def _spans(record: SearchRecord) -> Section:
    title, found = "Which spans earn their bits", earnings(record)
    if not found:
        return Section("spans", title, absent="no span of the returned mix was measured")
    lead = (
        "A span is the tensors of one kind in a range of layers. Its bits earn the KLD that its "
        "next smaller type would add, a byte, over what more bytes would save elsewhere."
    )
    plots = tuple(p for p in (bits_map(record), earning_map(record)) if p is not None)
    return Section("spans", title, lead, (*plots, spans_table(record, found)))


def _warnings(record: SearchRecord) -> Section:
    if not record.warnings:
        return Section("warnings", "Warnings", absent="there are none")
    return Section("warnings", "Warnings", blocks=(Items(record.warnings, marked=True),))


def _models(record: SearchRecord) -> Section:
    """What was predicted by what, and how well."""
    title = "How well the search predicts"
    lines = (*model_notes(record), *allocation_answer(record))
    if not lines:
        return Section("models", title, absent="too little was measured to fit anything")
    lead = "Errors are on mixes that nothing was fitted to."
    return Section("models", title, lead, (Items(lines),), folded=True)


def _front_table(record: SearchRecord) -> Section:
    title = "The front, size by size"
    if not record.front:
        return Section("front", title, absent="nothing was allocated")
    table = figures(
        ("size", "KLD added", "tokens a cycle, predicted", "replayed", "decode t/s, predicted"),
        (
            (
                short_size(p.size_bytes),
                number(p.kld, ".4g"),
                number(p.acceptance_length, ".3f"),
                number(p.replayed.acceptance_length if p.replayed else None, ".3f"),
                number(p.decode_speed, ".1f"),
            )
            for p in record.front
        ),
        title=None,
    )
    return Section("front", title, "On the prompts that the search saw.", (table,), folded=True)


def _evaluations(record: SearchRecord) -> Section:
    title = "Every evaluation"
    if not record.evaluations:
        return Section("evaluations", title, absent="nothing was replayed")
    changes = "differs from the reference in"
    table = figures(
        ("why", changes, "size", "prompts", "tokens a cycle", "KLD"),
        (
            (
                f"{one.purpose.replace('_', ' ')}: {one.why}",
                ", ".join(f"{span} {type_name}" for span, type_name in one.mix.items()) or None,
                short_size(one.size_bytes),
                str(one.replayed.prompts),
                number(one.replayed.acceptance_length, ".3f"),
                number(one.replayed.mean_kld, ".4g"),
            )
            for one in record.evaluations
        ),
        title=None,
        words=(changes,),
    )
    lead = "The reference: every span in the largest type that is offered."
    return Section("evaluations", title, lead, (table,), folded=True)


def _provenance(record: SearchRecord) -> Section:
    lines = (
        f"made by `{shlex.join(record.command)}`",
        f"cook {record.cook}, engine {record.engine}: {record.identity.build}",
        f"target {record.target}",
        f"recipe {record.recipe}",
    )
    recipes = (
        (record.found_recipe, "The recipe that was found"),
        (record.recipe_text, "The recipe given"),
    )
    codes = tuple(Code(text, title) for text, title in recipes if text)
    return Section("provenance", "Where it comes from", "", (Items(lines), *codes), folded=True)
