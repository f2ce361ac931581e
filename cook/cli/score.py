"""``cook score``, and with ``--url`` what a running server does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cook.cli.options import (
    EnginesOption,
    JobsOption,
    JsonOption,
    QuietOption,
    RivalOption,
    ThreadsOption,
    UnsafeArgsOption,
    WideOption,
    open_output,
)

if TYPE_CHECKING:
    from cook.build.run import Built
    from cook.output import Output
    from cook.score_url import UrlFigures, UrlScore
    from cook.scoring.totals import Total


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
    from cook.prompts.prompt_set import load_prompts, select
    from cook.score_url import MAX_TOKENS, score_url

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
    titles = (
        *("requests", "accepted/drafted", "acceptance", "tokens a cycle", "decode t/s"),
        "end-to-end t/s",
    )
    rows = [_row(name, figures) for name, figures in score.categories.items()]
    rows.append(_row("all", score.total))
    out.table(rows, ["category", *(Column(title, "right") for title in titles)])
    out.say("in brackets: 95% intervals over requests")


def _row(name: str, figures: UrlFigures) -> tuple[object, ...]:
    found = figures.acceptance
    return (
        name,
        figures.requests,
        f"{found.numerator:.0f}/{found.denominator:.0f}" if found else None,
        _with_interval(found, 100, "{:.1f}", "%"),
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


def command(
    drafts: Annotated[
        list[str] | None, typer.Argument(metavar="[DRAFT]...", help="Draft GGUFs to score.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", help="Target GGUF (shard 1 if split)."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Score the llama-server that runs there."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", help="Key of --url; else $COOK_API_KEY."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="RECIPE", help="Score this recipe's quants as well."),
    ] = None,
    engine: EnginesOption = None,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="SET", help="default, long, demo, or a .jsonl file."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many prompts.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=2, help="Tokens generated for each prompt.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=128, help="Context of the server, in tokens.")
    ] = None,
    n_max: Annotated[
        list[int] | None,
        typer.Option("--n-max", min=1, max=256, help="Draft length to try; repeat for more."),
    ] = None,
    p_min: Annotated[
        list[float] | None,
        typer.Option("--p-min", min=0, max=1, help="Least confidence to draft at; repeatable."),
    ] = None,
    draft_cache_type: Annotated[
        list[str] | None,
        typer.Option("--draft-cache-type", metavar="TYPE", help="KV type of drafts; repeatable."),
    ] = None,
    experts: Annotated[
        list[int] | None,
        typer.Option(
            "--experts", min=1, metavar="N", help="Active experts of the drafts; repeatable."
        ),
    ] = None,
    target_cache_type: Annotated[
        str | None,
        typer.Option("--target-cache-type", metavar="TYPE", help="KV type of the target."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0, max=10, help="Of the target; 0 is greedy."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of the target's sampler.")
    ] = None,
    method: Annotated[
        Literal["replay", "live"] | None,
        typer.Option(
            "--method",
            help="replay: on the target's recorded text, the best live; live: all of them live.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="A trace of `cook trace`, not a new one."),
    ] = None,
    maximize: Annotated[
        Literal["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"] | None,
        typer.Option(
            "--maximize",
            help="What the pick maximizes.",
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0.01, help="Minutes of live runs at most.")
    ] = None,
    rival: RivalOption = None,
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    allow_unsafe_args: UnsafeArgsOption = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Hash and measure again, stored or not.", show_default=False),
    ] = False,
    wide: WideOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score drafts against a target on its real server, and pick the best.

    No draft at all is always one of the candidates. With --url, a server that already runs is
    asked the prompts as it is, and its acceptance and speed are shown by category.

    Examples:

      cook score --target Ling-1T-smol-IQ4_KSS.gguf Ling-flash-IQ1_KT.gguf Ling-flash-IQ2_KL.gguf
      cook score --target Ling-1T-smol-IQ4_KSS.gguf --recipe recipes/ling-flash-iq1kt.yaml
      cook score --target T.gguf D.gguf --n-max 4 --n-max 8 --limit 24 --budget 10
      cook score --target T.gguf MOE.gguf --experts 8 --experts 6 --experts 4
      cook score --target T.gguf D.gguf --rival ngram-mod --rival ngram-map-k:size_n=8
      cook score --url http://127.0.0.1:8080 --limit 24
    """
    output = open_output(json, quiet)
    if url is not None:
        others: list[object] = [target, drafts, recipe, engine, context, n_max, p_min]
        others += [draft_cache_type, experts, target_cache_type, temperature, seed, method, trace]
        others += [rival, maximize, budget, threads, allow_unsafe_args or None]
        alone = all(other in (None, []) for other in others)
        score_url_command(output, url, api_key_file, prompts, limit, max_tokens, alone=alone)
        return
    from cook.build.answer import answer
    from cook.recipe.schema import rival_keys

    settings: dict[str, object] = {
        "prompts": _source(prompts),
        "limit": limit,
        "max_tokens": max_tokens,
        "context": context,
        "method": method,
        "trace": str(trace.absolute()) if trace else None,
        "target": {
            "args": _given({"cache_type_k": target_cache_type, "cache_type_v": target_cache_type})
        },
        "sampling": _given({"temperature": temperature, "seed": seed}),
        "draft": _given({"n_max": n_max, "p_min": p_min, "cache_types": draft_cache_type}),
        "live_budget": _given({"minutes": budget}),
        "rivals": [rival_keys(one) for one in rival or ()] or None,
    }

    def build_it() -> Built:
        from cook.build.adhoc import score_recipe
        from cook.build.prepare import prepare
        from cook.build.run import build

        loaded = score_recipe(
            *(target, drafts or [], recipe, settings, maximize),
            experts=experts or (),
            unsafe_args=allow_unsafe_args,
        )
        prepared = prepare(loaded, engines=engine or (), threads=threads, output=output)
        return build(prepared, output, jobs=jobs, threads=threads, fresh=fresh)

    question = {
        "threads": threads,
        "maximize": maximize,
        "score": target,
        "drafts": drafts,
        "experts": experts,
        "recipe": recipe,
        "from": Path.cwd(),
        "unsafe_args": allow_unsafe_args,
    }
    answer({**question, "engine": engine, **settings}, build_it, output, fresh=fresh, wide=wide)


def _given(options: dict[str, object]) -> dict[str, object]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def _source(prompts: str | None) -> str | None:
    """A prompt file's path made absolute; the name of a set as it is."""
    if prompts is None or not Path(prompts).is_file():
        return prompts
    return str(Path(prompts).absolute())
