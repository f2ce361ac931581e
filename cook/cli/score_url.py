"""``cook score --url``: what a running server does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cook.output import Output
    from cook.speculation.totals import Total
    from cook.steps.url_score import UrlFigures, UrlScore


def score_url_command(
    out: Output,
    url: str,
    key_file: Path | None,
    prompts: str | None,
    limit: int | None,
    max_tokens: int | None,
    *,
    alone: bool,
) -> None:
    """Score the server at ``url`` and show it; ``alone``: nothing else was asked for."""
    from cook.engines.remote import Remote, read_key
    from cook.errors import InputError
    from cook.prompts.load import load_prompts, select
    from cook.steps.url_score import MAX_TOKENS, score_url

    if not alone:
        raise InputError(
            "--url scores a server as it runs: no target, draft, recipe or setting goes with it",
            hint="it takes --prompts, --limit, --max-tokens and --api-key-file",
        )
    chosen = select(load_prompts(prompts or "default"), limit)
    with (
        Remote(url, read_key(key_file)) as remote,
        out.progress(len(chosen.prompts), "score") as progress,
    ):
        score = score_url(
            remote, chosen, max_tokens=max_tokens or MAX_TOKENS, on_prompt=progress.advance
        )
    for warning in score.warnings:
        out.warn(warning)
    out.emit(_document(score))
    _show(out, score)


def _document(score: UrlScore) -> dict[str, Any]:
    from cook.output import plain

    document: dict[str, Any] = plain(score)
    for figures in (document["total"], *document["categories"].values()):
        for found in figures.values():
            if isinstance(found, dict):
                found["value"] = found["numerator"] / found["denominator"]
    return document


def _show(out: Output, score: UrlScore) -> None:
    from cook.output import Column

    out.say(f"{score.url}: {score.model}, {score.flavour} ({score.build})")
    titles = ("N", "accepted", "acceptance", "tokens/cycle", "decode t/s", "end-to-end t/s")
    rows = [_row(name, figures) for name, figures in score.categories.items()]
    rows.append(_row("all", score.total))
    out.table(rows, ["category", *(Column(title, "right") for title in titles)])
    out.say("in brackets: 95 % intervals over requests")


def _row(name: str, figures: UrlFigures) -> tuple[object, ...]:
    found = figures.acceptance
    return (
        name,
        figures.requests,
        f"{found.numerator:.0f}/{found.denominator:.0f}" if found else None,
        _with_interval(found, 100, "{:.1f}", " %"),
        _with_interval(figures.acceptance_length, 1, "{:.2f}"),
        _with_interval(figures.decode, 1, "{:.2f}"),
        _with_interval(figures.end_to_end, 1, "{:.2f}"),
    )


def _with_interval(found: Total | None, scale: float, form: str, unit: str = "") -> str | None:
    if found is None:
        return None
    text = form.format(scale * found.value) + unit
    if found.low is None or found.high is None:
        return text
    return f"{text} ({form.format(scale * found.low)}-{form.format(scale * found.high)})"
