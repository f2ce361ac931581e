"""Score a server that already runs: its own draft, its own settings, at a given address.

Prompts are sent one by one and the server's counts and times are read. Nothing is stored: what
runs there, and what else it is doing, is not ours to know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cook.engines.server_api import Completion, Remote
from cook.engines.speculation import BY_DRAFT, unwanted
from cook.errors import InputError, StepError
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.prompts.prompt_set import Prompt, PromptSet
from cook.record.record import PromptRun
from cook.scoring.totals import Share, Total, total
from cook.steps.live import WARM_UP, WARM_UP_TOKENS, run_of
from cook.trace.server_target import ServerFacts, server_facts

MAX_TOKENS = 128
CONFIDENCE = 0.95


@dataclass(frozen=True)
class UrlFigures:
    """What the server counted over ``requests`` requests, each total with its interval.

    ``drafting`` of the requests drafted; acceptance is over these. Speeds in tokens after the
    first per second: ``decode`` of decoding, ``end_to_end`` from request to answer as this client
    saw it, connecting included. None where no request has such a figure.
    """

    requests: int
    drafting: int
    acceptance: Total | None
    acceptance_length: Total | None
    decode: Total | None
    end_to_end: Total | None


@dataclass(frozen=True)
class UrlScore:
    """One scoring of the server at ``url``."""

    url: str
    flavour: str
    build: str
    model: str
    prompts: str
    prompts_sha256: str
    max_tokens: int
    total: UrlFigures
    categories: dict[str, UrlFigures]
    runs: tuple[PromptRun, ...]
    warnings: tuple[str, ...]
    speculators: tuple[str, ...] = ()
    """Its kinds of speculation, where it reports them (mainline)."""


def score_url(
    remote: Remote,
    prompts: PromptSet,
    *,
    max_tokens: int = MAX_TOKENS,
    raw: bool = False,
    sampling: Sampling | None = None,
    on_prompt: Callable[[], None] = lambda: None,
) -> UrlScore:
    """Send ``prompts`` to ``remote``, greedily unless ``sampling`` says otherwise.

    ``raw``: without the server's chat template. ``on_prompt`` is called after each answer. Prompts
    that do not fit the server's context are left out, with a warning.
    InputError where there is no llama-server, StepError where it fails or answers nonsense.
    """
    facts = server_facts(remote, may_draft=True)
    if facts is None:
        raise InputError(
            f"{remote.url} is no llama-server: it has no /props",
            hint="the address without a path, such as http://127.0.0.1:8080",
        )
    chat = facts.template is not None and not raw
    warnings = _busy(remote)
    rendered = [
        (p, remote.apply_template(p.messages) if chat else p.untemplated) for p in prompts.prompts
    ]
    fitting = [
        (p, text)
        for p, text in rendered
        if len(remote.tokenize(text, add_special=True)) + max_tokens <= facts.context
    ]
    if not fitting:
        raise InputError(
            f"no prompt fits the context of {remote.url}: {facts.context} tokens",
            hint="shorter prompts, or fewer --max-tokens",
        )
    if len(fitting) < len(rendered):
        warnings.append(
            f"{len(rendered) - len(fitting)} of {len(rendered)} prompts left out: with "
            f"{max_tokens} tokens of reply they exceed the server's context of {facts.context}"
        )
    # Warms the server up, and parts us from whatever it was asked before
    # (ik: docs/internals/engines.md#a-prompt-that-was-asked-before).
    kinds = _ask(remote, WARM_UP, WARM_UP_TOKENS, Sampling()).speculators
    runs = []
    for prompt, text in fitting:
        runs.append(_run(remote, prompt, text, max_tokens, sampling or Sampling()))
        on_prompt()
    warnings += _doubts(facts, runs, [text for _, text in fitting], kinds)
    return UrlScore(
        url=remote.url,
        flavour=str(facts.flavour),
        build=facts.build,
        model=facts.model,
        prompts=prompts.name,
        prompts_sha256=prompts.sha256,
        max_tokens=max_tokens,
        total=url_figures(runs),
        categories={
            category: url_figures([r for r in runs if r.category == category])
            for category in dict.fromkeys(r.category for r in runs)
        },
        runs=tuple(runs),
        warnings=tuple(warnings),
        speculators=kinds,
    )


def url_figures(runs: Sequence[PromptRun]) -> UrlFigures:
    """Totals of ``runs``; categories are strata."""
    drafting = [r for r in runs if r.draft_n]

    def ratio(
        of: Sequence[PromptRun],
        parts: Callable[[PromptRun], tuple[float, float]],
        least: float = 0.0,
        most: float = math.inf,
    ) -> Total | None:
        shares = [Share(*parts(run), run.category) for run in of]
        known = [s for s in shares if s.denominator > 0]
        return total(known, confidence=CONFIDENCE, least=least, most=most)

    return UrlFigures(
        requests=len(runs),
        drafting=len(drafting),
        acceptance=ratio(drafting, lambda r: (r.draft_n_accepted or 0, r.draft_n or 0), most=1.0),
        acceptance_length=ratio(drafting, lambda r: (r.predicted_n - 1, r.cycles or 0), least=1.0),
        decode=ratio(runs, lambda r: (r.predicted_n - 1, r.predicted_ms / 1000)),
        end_to_end=ratio(runs, lambda r: (r.predicted_n - 1, r.wall_ms / 1000)),
    )


def _run(
    remote: Remote, prompt: Prompt, text: str, max_tokens: int, sampling: Sampling
) -> PromptRun:
    started = time.perf_counter()
    answer = _ask(remote, text, max_tokens, sampling.for_prompt(prompt.id))
    wall_ms = (time.perf_counter() - started) * 1000
    if answer.predicted_n < 1:
        raise StepError(f"{remote.url} wrote nothing for prompt {prompt.id}")
    return run_of(prompt, answer, wall_ms)


def _ask(remote: Remote, text: str, n_predict: int, sampling: Sampling) -> Completion:
    return remote.complete(
        {
            **sampling.asked(),
            "prompt": text,
            "n_predict": n_predict,
            "cache_prompt": False,
            "stream": False,
        }
    )


def _busy(remote: Remote) -> list[str]:
    slots = remote.get("/slots")
    busy = [
        slot
        for slot in (slots if isinstance(slots, list) else [])
        if isinstance(slot, dict) and (slot.get("is_processing") is True or slot.get("state") == 1)
    ]
    if not busy:
        return []
    return [f"{remote.url} is serving other requests as well: it could be faster alone"]


def _doubts(
    facts: ServerFacts, runs: Sequence[PromptRun], texts: Sequence[str], kinds: Sequence[str]
) -> list[str]:
    doubts = []
    silent = sum(not run.draft_n for run in runs)
    if others := unwanted(kinds, (BY_DRAFT[facts.flavour],)):
        doubts.append(
            f"the server speculates by {', '.join(others)}: no figure here is a draft model's "
            "alone, nor one without speculation"
        )
    if silent == len(runs) and kinds:
        doubts.append(f"the server drafted nothing, though it speculates by {', '.join(kinds)}")
    elif silent == len(runs):
        doubts.append(
            "the server drafted nothing: it needs a draft and a --spec-type; a draft model alone "
            "is loaded and not used"
        )
    elif silent:
        doubts.append(f"{silent} of {len(runs)} requests drafted nothing")
    if facts.flavour is Flavour.IK_LLAMA_CPP and silent < len(runs):
        repeats = [
            runs[i + 1].id
            for i, (one, other) in enumerate(pairwise(texts))
            if one.startswith(other) or other.startswith(one)
        ]
        if repeats:
            doubts.append(
                f"prompt {repeats[0]} repeats or continues the one before it, and ik_llama.cpp "
                "then drafts its own last answer: acceptance is inflated"
            )
        elif len(runs) == 1:
            doubts.append(
                "ik_llama.cpp drafts its own last answer when a prompt is repeated: acceptance "
                "is inflated if others ask it the same prompt meanwhile"
            )
    return doubts
