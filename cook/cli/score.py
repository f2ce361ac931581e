"""``cook score``, and with ``--url`` what a running server does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cook.cli import options as opt
from cook.output import Output, plain, right

if TYPE_CHECKING:
    from cook.job.run import Built
    from cook.scoring.totals import Total

AT_URL = (
    *("out", "url", "model", "api_key_file", "prompts", "limit", "max_tokens"),
    *("jobs", "threads", "fresh"),
)
"""Parameters that `cook score --url` takes, and those that the configuration may set."""


def command(
    out: Output,
    drafts: list[str] | None = opt.argument(
        "[DRAFT]...", "Draft GGUFs; `target`: its own head.", default=None
    ),
    target: str | None = opt.option(
        "--target", "Target GGUF (shard 1 if split).", metavar="TARGET"
    ),
    url: str | None = opt.option("--url", "Score the llama-server that runs there.", metavar="URL"),
    model: str | None = opt.MODEL,
    api_key_file: Path | None = opt.option(
        "--api-key-file", "Key of --url; else $COOK_API_KEY.", metavar="FILE"
    ),
    recipe: Path | None = opt.option(
        "--recipe", "Score this recipe's quants as well.", metavar="RECIPE"
    ),
    engine: list[str] | None = opt.ENGINES,
    prompts: str | None = opt.option(
        "--prompts", "default, long, demo, or a .jsonl or .json file.", metavar="SET"
    ),
    limit: int | None = opt.LIMIT,
    max_tokens: int | None = opt.option("--max-tokens", "Tokens generated for each prompt.", min=2),
    context: int | None = opt.option("--context", "Context of the server, in tokens.", min=128),
    n_max: list[int] | None = opt.option(
        "--n-max", "Draft length to try; repeat for more.", min=1, max=256
    ),
    p_min: list[float] | None = opt.option(
        "--p-min", "Least confidence to draft at; repeatable.", min=0, max=1
    ),
    draft_cache_type: list[str] | None = opt.option(
        "--draft-cache-type", "KV type of drafts; repeatable.", metavar="TYPE"
    ),
    experts: list[int] | None = opt.option(
        "--experts", "Active experts of the drafts; repeatable.", min=1, metavar="N"
    ),
    temperature: float | None = opt.option(
        "--temperature", "Of the target; 0 is greedy.", min=0, max=10
    ),
    method: Literal["replay", "live"] | None = opt.option(
        "--method", "replay: on the target's recorded text, the best live; live: all of them live."
    ),
    trace: Path | None = opt.option(
        "--trace", "A trace of `cook trace`, not a new one.", metavar="FILE"
    ),
    maximize: Literal["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"]
    | None = opt.option("--maximize", "What the pick maximizes."),
    budget: float | None = opt.option(
        "--budget", "Minutes of live runs; the first pass may take twice that.", min=0.01
    ),
    rival: list[str] | None = opt.RIVALS,
    jobs: int = opt.JOBS,
    threads: int | None = opt.THREADS,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
    fresh: bool = opt.flag("--fresh", "Hash and measure again, stored or not."),
    wide: bool = opt.WIDE,
) -> None:
    """Score drafts against a target on its real server, and pick the best.

    No draft at all is always one of the candidates. With --url, a server that already runs is
    asked the prompts as it is, and its acceptance and speed are shown by category.

    Examples:

      cook score --target Ling-1T-smol-IQ4_KSS.gguf Ling-flash-IQ1_KT.gguf Ling-flash-IQ2_KL.gguf
      cook score --target Ling-1T-smol-IQ4_KSS.gguf --recipe recipes/ling-flash-iq1kt.yaml
      cook score --target T.gguf D.gguf --n-max 4 --n-max 8 --limit 24 --budget 10
      cook score --target T.gguf MOE.gguf --experts 8 --experts 6 --experts 4
      cook score --target T.gguf target mtp-Q4_0.gguf D.gguf
      cook score --target T.gguf D.gguf --rival ngram-mod --rival ngram-map-k:size_n=8
      cook score --url http://127.0.0.1:8080 --limit 24
      cook score --url http://127.0.0.1:8080 --model qwen3-32b
    """
    others = {name: value for name, value in locals().items() if name not in AT_URL}
    if url is not None:
        alone = all(v is None or v is False or v == [] for v in others.values())
        _score_url(out, url, model, api_key_file, prompts, limit, max_tokens, alone=alone)
        return
    if model is not None:
        from cook.errors import InputError

        raise InputError("--model chooses one of a router's models: it goes with --url")
    from cook.job.answer import print_build
    from cook.recipe.schema import rival_keys

    if prompts is not None and Path(prompts).is_file():
        prompts = str(Path(prompts).absolute())  # the name of a set stays as it is
    settings: dict[str, object] = {
        "prompts": prompts,
        "limit": limit,
        "max_tokens": max_tokens,
        "context": context,
        "method": method,
        "trace": str(trace.absolute()) if trace else None,
        "sampling": _given({"temperature": temperature}),
        "draft": _given({"n_max": n_max, "p_min": p_min, "cache_types": draft_cache_type}),
        "live_budget": _given({"minutes": budget}),
        "rivals": [rival_keys(one) for one in rival or ()] or None,
    }

    def build_it() -> Built:
        from cook.errors import RecipeError
        from cook.job.adhoc import of_command_line, score_recipe
        from cook.job.prepare import prepare
        from cook.job.run import build

        loaded = score_recipe(
            *(target, drafts or [], recipe, settings, maximize),
            experts=experts or (),
            unsafe_args=allow_unsafe_args,
        )
        try:
            prepared = prepare(loaded, engines=engine or (), threads=threads, output=out)
        except RecipeError as error:
            raise error if recipe is not None else of_command_line(error, loaded.text) from None
        return build(prepared, out, jobs=jobs, threads=threads, fresh=fresh)

    question = {
        "threads": threads,
        "maximize": maximize,
        "score": target,
        "drafts": drafts,
        "experts": experts,
        "recipe": recipe,
        "from": Path.cwd(),
        "unsafe_args": allow_unsafe_args,
        "engine": engine,
    }
    again = "--fresh" if fresh else None
    print_build({**question, **settings}, build_it, out, again=again, wide=wide)


def _given(options: dict[str, object]) -> dict[str, object]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def _score_url(
    out: Output,
    url: str,
    model: str | None,
    key_file: Path | None,
    prompts: str | None,
    limit: int | None,
    max_tokens: int | None,
    *,
    alone: bool,
) -> None:
    """Score the server at ``url`` and show it; ``alone``: no other option was given."""
    from cook.engines.server_api import Remote, read_key
    from cook.errors import InputError
    from cook.prompts.prompt_set import load_prompts, select
    from cook.score_url import MAX_TOKENS, score_url

    if not alone:
        raise InputError(
            "--url scores a server as it runs: no target, draft, recipe or setting goes with it",
            hint="it takes --model, --prompts, --limit, --max-tokens and --api-key-file",
        )
    chosen = select(load_prompts(prompts or "default"), limit)
    with (
        Remote(url, read_key(key_file), model=model) as remote,
        out.progress(len(chosen.prompts), "score") as progress,
    ):
        score = score_url(
            remote, chosen, max_tokens=max_tokens or MAX_TOKENS, on_prompt=progress.advance
        )
    for warning in score.warnings:
        out.warn(warning)
    document: dict[str, Any] = plain(score)
    for figures in (document["total"], *document["categories"].values()):
        for found in figures.values():
            if isinstance(found, dict):
                found["value"] = found["numerator"] / found["denominator"]
    out.emit(document)
    out.say(f"{score.url}: {score.model}, {score.flavour} ({score.build})")
    rows = []
    for name, one in {**score.categories, "all": score.total}.items():
        rate = one.acceptance
        rows.append(
            (
                name,
                one.requests,
                f"{rate.numerator:.0f}/{rate.denominator:.0f}" if rate else None,
                _with_interval(rate, lambda share: f"{100 * share:.1f}", "%"),
                *map(_with_interval, (one.acceptance_length, one.decode, one.end_to_end)),
            )
        )
    titles = ("requests", "accepted/drafted", "acceptance", "tokens a cycle", "decode t/s")
    out.table(rows, ["category", *right(*titles, "end-to-end t/s")])
    out.say("in brackets: 95% intervals over requests")


def _with_interval(
    found: Total | None, text: Callable[[float], str] = "{:.2f}".format, unit: str = ""
) -> str | None:
    if found is None:
        return None
    value = text(found.value) + unit
    if found.low is None or found.high is None:
        return value
    return f"{value} ({text(found.low)}-{text(found.high)})"
