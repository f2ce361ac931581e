"""A record in the words that people post: rows and files of the community's own benchmarks.

Each shows one candidate that ran live, beside no draft of the same engine, and under it what a
reader needs to believe it: over which prompts, with which interval, by which commands, build and
log. What the record does not hold stays empty (a dash, a null, n/a), and prompts that are not the
benchmark's own are named as such.

- ``qwen38-mtp``: the table of sudoingX/qwen38-mtp (README.md and probe.py at c7bc415): medians.
- ``mtp-bench``: what mtp-bench.py of llama.cpp #22673 prints: nine prompts of 192 tokens, a line
  each, and the aggregate.
- ``llama.cpp``: the tables of that thread, which people make of it.
- ``speed-bench``: the JSON of tools/server/bench/speed-bench of llama.cpp (0c1e570), of one
  candidate; its speed_bench_compare.py reads two of them.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cook.errors import InputError
from cook.record.measured import PromptFigures
from cook.record.record import Candidate, Record
from cook.report.commands import ran_as
from cook.report.public import public
from cook.scoring.intervals import FEWEST_PROMPTS, SEED
from cook.units import plural

MTP_BENCH_PROMPTS = (
    *("code_python", "code_cpp", "explain_concept", "summarize", "qa_factual", "translation"),
    *("creative_short", "stepwise_math", "long_code_review"),
)
"""Names of mtp-bench.py's prompts, which are asked for 192 tokens each."""
CONFIDENCE = 0.95
_RESAMPLES = 2000
_NOT_KNOWN = "—"


class PostFormat(StrEnum):
    """Whose form a record is shown in."""

    QWEN38_MTP = "qwen38-mtp"
    MTP_BENCH = "mtp-bench"
    LLAMA_CPP = "llama.cpp"
    SPEED_BENCH = "speed-bench"


def post_format(name: str) -> PostFormat:
    """The format called ``name``; InputError names those there are."""
    try:
        return PostFormat(name)
    except ValueError:
        known = ", ".join(PostFormat)
        raise InputError(f"--as: no format {name!r}", hint=f"one of {known}") from None


@dataclass(frozen=True)
class Arm:
    """One candidate's requests; speeds in tokens after the first per second."""

    candidate: Candidate
    prompts: PromptFigures

    @property
    def speeds(self) -> dict[str, float]:
        """By prompt; a reply of one token has none."""
        of = self.prompts
        timed = zip(of.ids, of.tokens, of.decode_ms, strict=True)
        return {name: 1000 * tokens / ms for name, tokens, ms in timed if tokens and ms > 0}

    @property
    def acceptance(self) -> float | None:
        drafted = sum(d or 0 for d in self.prompts.drafted)
        return sum(a or 0 for a in self.prompts.accepted) / drafted if drafted else None

    @property
    def rates(self) -> tuple[float | None, ...]:
        """accepted / drafted of each prompt."""
        pairs = zip(self.prompts.accepted, self.prompts.drafted, strict=True)
        return tuple((a or 0) / d if d else None for a, d in pairs)

    @property
    def wall_s(self) -> float:
        return sum(self.prompts.wall_ms) / 1000


@dataclass(frozen=True)
class MedianSpeed:
    """A median (or a ratio of two) over prompts, with the interval of resampled prompts.

    None with fewer prompts than :data:`cook.scoring.intervals.FEWEST_PROMPTS`.
    """

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f} (fewer than {FEWEST_PROMPTS} prompts: no interval)"
        return f"{self.value:.2f} ({CONFIDENCE:.0%}: {self.low:.2f} to {self.high:.2f})"


def post(record: Record, form: PostFormat, candidate: str | None = None) -> str:
    """``record`` as ``form``: of ``candidate``, else of the pick, else of the fastest live draft.

    InputError where it did not run live, or nothing did that it could stand beside.
    """
    shown = public(record)
    chosen = _chosen(shown, candidate)
    arm = _arm(shown, chosen)
    if form is PostFormat.SPEED_BENCH:
        return _speed_bench(shown, arm)
    if arm.candidate.draft is None:
        raise InputError(
            f"{chosen} has no draft: {form} shows one beside no draft",
            hint="name one that ran live: --candidate NAME",
        )
    bare = next(
        (
            c.name
            for c in shown.candidates
            if c.draft is None and c.engine == arm.candidate.engine and c.prompts is not None
        ),
        None,
    )
    if bare is None:
        raise InputError(f"{record.recipe}: no draft did not run live on {arm.candidate.engine}")
    base = _arm(shown, bare)
    body = {
        PostFormat.QWEN38_MTP: _qwen38_mtp,
        PostFormat.MTP_BENCH: _mtp_bench,
        PostFormat.LLAMA_CPP: _llama_cpp,
    }[form](shown, base, arm)
    return "\n".join([*body, "", *_evidence(shown, base, arm)]) + "\n"


def _chosen(record: Record, candidate: str | None) -> str:
    """The name of the candidate to show."""
    live = [c for c in record.candidates if c.prompts is not None and c.live is not None]
    named = ", ".join(c.name for c in live) or "none"
    if candidate is not None:
        if candidate not in (c.name for c in live):
            raise InputError(
                f"{record.recipe}: {candidate} did not run live", hint=f"these did: {named}"
            )
        return candidate
    picked = next((c for c in live if c.name == record.pick.candidate and c.draft), None)
    drafts = [c for c in live if c.draft is not None]
    if picked is None and not drafts:
        raise InputError(
            f"{record.recipe}: no draft of this record ran live",
            hint="a build confirms its finalists live; --candidate names another that ran",
        )
    return (picked or max(drafts, key=lambda c: (c.live and c.live.decode_speed) or 0.0)).name


def _arm(record: Record, name: str) -> Arm:
    found = record.candidate(name)
    assert found is not None, "chosen among the record's own"
    assert found.prompts is not None, "chosen among those that ran live"
    return Arm(found, found.prompts)


def median_of(arm: Arm, base: Arm | None = None) -> MedianSpeed:
    """The median over prompts of an arm's speeds, over that of ``base`` on the same prompts.

    Both medians of a ratio come from the same resampled prompts. InputError where nothing has a
    speed.
    """
    import numpy as np

    mine = arm.speeds
    theirs = dict.fromkeys(mine, 1.0) if base is None else base.speeds
    common = [name for name in mine if name in theirs]
    if not common:
        raise InputError(f"{arm.candidate.name}: no reply of two tokens or more: nothing to time")
    columns = np.array([[mine[name], theirs[name]] for name in common])

    def ratio(rows: Any) -> Any:
        top, bottom = np.moveaxis(np.median(columns[rows], axis=-2), -1, 0)
        return top / bottom

    value = float(ratio(np.arange(len(common))))
    if len(common) < FEWEST_PROMPTS:
        return MedianSpeed(value, None, None)
    drawn = np.random.default_rng(SEED).integers(0, len(common), (_RESAMPLES, len(common)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratio(drawn), [tail, 100 - tail])
    return MedianSpeed(value, float(low), float(high))


def _n_max(arm: Arm) -> str:
    settings = arm.candidate.settings
    return str(settings.n_max) if settings is not None else _NOT_KNOWN


def _qwen38_mtp(record: Record, base: Arm, arm: Arm) -> Iterator[str]:
    """One row: card, two medians, n-max, acceptance; who posts it is not the record's to say."""
    known = [rate for rate in arm.rates if rate is not None]
    spread = f"{min(known):.2f}-{max(known):.2f}" if known else _NOT_KNOWN
    told = f"{spread} ({arm.acceptance:.2f} aggregate)" if arm.acceptance is not None else spread
    cells = (
        _card(record),
        f"{median_of(base).value:.1f}",
        f"{median_of(arm).value:.1f}",
        _n_max(arm),
        told,
        _NOT_KNOWN,
    )
    yield "| Card | Baseline | With flag | n-max | Acceptance | Contributor |"
    yield "|---|---|---|---|---|---|"
    yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _card(record: Record) -> str:
    cards = record.machine.accelerators
    return ", ".join(cards) if cards else record.machine.processor


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _mtp_bench(record: Record, base: Arm, arm: Arm) -> Iterator[str]:
    """Both arms as the script prints them."""
    for one in (base, arm):
        yield f"## {one.candidate.name}"
        yield ""
        yield "```"
        of = one.prompts
        columns = zip(of.ids, of.tokens, of.decode_ms, of.drafted, of.accepted, strict=True)
        for name, tokens, ms, drafted, accepted in columns:
            rate = f"{(accepted or 0) / drafted:.3f}" if drafted else "n/a"
            speed = f"{1000 * tokens / ms:.1f}" if ms > 0 else "n/a"
            yield (
                f"  {name:<18} pred={tokens + 1:>4} draft={drafted or 0:>4} "
                f"acc={accepted or 0:>4} rate={rate} tok/s={speed}"
            )
        yield ""
        drafted_all = sum(d or 0 for d in of.drafted)
        aggregate = {
            "n_requests": len(of.ids),
            "total_predicted": sum(of.tokens) + len(of.ids),
            "total_draft": drafted_all,
            "total_draft_accepted": sum(a or 0 for a in of.accepted),
            "aggregate_accept_rate": None if one.acceptance is None else round(one.acceptance, 4),
            "wall_s_total": round(one.wall_s, 2),
        }
        yield f"Aggregate: {json.dumps(aggregate, indent=2)}"
        yield "```"
        yield ""


def _llama_cpp(record: Record, base: Arm, arm: Arm) -> Iterator[str]:
    """The aggregate of both arms, then acceptance prompt by prompt."""
    yield "| Run | Wall (s) | Accept rate | Avg tok/s |"
    yield "|---|---:|---:|---:|"
    for one in (base, arm):
        rate = "n/a" if one.acceptance is None else f"{one.acceptance:.3f}"
        mean = f"{statistics.mean(one.speeds.values()):.1f}" if one.speeds else "n/a"
        yield f"| {_cell(one.candidate.name)} | {one.wall_s:.2f} | {rate} | {mean} |"
    yield ""
    yield f"| prompt | n={_n_max(arm)} |"
    yield "|---|---:|"
    for name, found in zip(arm.prompts.ids, arm.rates, strict=True):
        yield f"| {_cell(name)} | {'n/a' if found is None else f'{found:.3f}'} |"


def _speed_bench(record: Record, arm: Arm) -> str:
    of = arm.prompts
    rows = [
        {
            "id": of.ids[i],
            "category": of.categories[i],
            "ok": True,
            "turns": 1,
            "latency_s": of.wall_ms[i] / 1000,
            "prompt_tokens": None,
            "completion_tokens": of.tokens[i] + 1,
            "total_tokens": None,
            "finish_reason": None,
            "draft_n": of.drafted[i] or 0,
            "draft_n_accepted": of.accepted[i] or 0,
            "prompt_ms": None,
            "predicted_ms": of.decode_ms[i],
            "prompt_per_second": None,
            "predicted_per_second": 1000 * of.tokens[i] / of.decode_ms[i]
            if of.decode_ms[i] > 0
            else None,
            "error": None,
        }
        for i in range(len(of.ids))
    ]
    categories = dict.fromkeys(of.categories)
    groups = [(c, [r for r in rows if r["category"] == c]) for c in categories]
    document = {
        "config": {
            "url": None,
            "model": record.target,
            "bench": record.prompts,
            "category": "all",
            "osl": record.max_tokens,
            "concurrency": 1,
            "extra_inputs": {"temperature": record.temperature},
        },
        "selected_samples": len(rows),
        "completed_samples": len(rows),
        "failed_samples": 0,
        "summary": [_summary(name, group) for name, group in (*groups, ("overall", rows))],
        "results": rows,
        "cook": {
            "candidate": arm.candidate.name,
            "prompts": f"cook's own ({record.prompts}), not SPEED-Bench's",
            "median_t_s": str(median_of(arm)),
            "runs": arm.candidate.repeats,
            "command": _command(arm),
            "build": _build(record, arm),
            "log": arm.candidate.log,
        },
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _summary(category: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row of its summary; prompts are not timed apart in a record, so that speed is null."""
    speeds = [r["predicted_per_second"] for r in rows if r["predicted_per_second"] is not None]
    drafted, accepted = (sum(r[name] for r in rows) for name in ("draft_n", "draft_n_accepted"))
    return {
        "category": category,
        "requests": len(rows),
        "turns": len(rows),
        "failed": 0,
        "avg_prompt_t_s": None,
        "avg_pred_t_s": statistics.mean(speeds) if speeds else None,
        "avg_latency": statistics.mean(r["latency_s"] for r in rows) if rows else None,
        "draft_n": drafted,
        "accepted": accepted,
        "accept_rate": accepted / drafted if drafted else None,
    }


def _evidence(record: Record, base: Arm, arm: Arm) -> Iterator[str]:
    """What stands beside every row."""
    own = arm.prompts.ids == MTP_BENCH_PROMPTS and record.max_tokens == 192
    whose = "mtp-bench.py's" if own else f"cook's own set ({record.prompts})"
    runs = arm.candidate.repeats
    told = f"{plural(runs, 'run')}, medians over runs" if runs else "runs not recorded"
    yield (
        f"- measured: {plural(len(arm.prompts.ids), 'prompt')} x {record.max_tokens} tokens, "
        f"{whose}; {told}; temperature {record.temperature:g}, one slot"
    )
    yield f"- no draft: {median_of(base)} t/s, median over prompts"
    yield f"- {arm.candidate.name}: {median_of(arm)} t/s; over no draft {median_of(arm, base)}"
    yield f"- target: {record.target}; machine: {_card(record)}, {record.machine.system}"
    yield f"- build: {_build(record, arm)}; cook {record.cook}, {record.created}"
    for one in (base, arm):
        yield f"- {one.candidate.name}: `{_command(one)}`"
        yield f"  log: {one.candidate.log or 'not recorded'}"


def _command(arm: Arm) -> str:
    """As it ran, to be copied: everything but the address and the key."""
    return shlex.join(ran_as(arm.candidate.command)) or "not recorded"


def _build(record: Record, arm: Arm) -> str:
    engine = record.engines.get(arm.candidate.engine)
    if engine is None:
        return arm.candidate.engine
    return f"{engine.flavour} {engine.build} [sha256 {engine.digest[:12]}]"
