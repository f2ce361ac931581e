"""``cook predict``, answered in print: settings by speed, then the best one in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cook.job.predict import (
    CONSTANT,
    DraftPrediction,
    PredictRequest,
    TracePrediction,
    TypedPrediction,
    predict_on_trace,
    predict_typed,
)
from cook.job.what_if import ChainExpectation
from cook.output import Column, Output, plain, right
from cook.record.measured import Figures
from cook.report.sections.in_parallel import answers, gain
from cook.scoring.figures import by_category
from cook.scoring.iid import CAVEAT, IidRow
from cook.scoring.price import Forecast
from cook.scoring.sampled import SampledPrediction
from cook.units import number, plural

TAIL = "the draft draws at the target's temperature from all its tokens"
NO_DRAFT = "no draft"
CHAIN = ("temperature", "top_k", "top_p", "min_p")
NOT_WORTH_IT = "not worth it"
NOT_CHECKED = "counts are this engine's by its source; `cook score` checks them against a live run"


def answer(request: PredictRequest, output: Output) -> None:
    """Predict from a trace, or from a typed acceptance without one, and print it."""
    if request.typed:
        _show_typed(request, output)
    else:
        show(predict_on_trace(request, output), output)


def document(whole: TracePrediction) -> dict[str, Any]:
    """Everything as one JSON document; speeds are null where no times are known."""
    header, bare = whole.trace.header, whole.no_draft
    return {
        "trace": str(whole.trace.path),
        "target": header.target_name,
        "replies": len(whole.trace),
        "sampler": plain(header.sampler),
        "profile": whole.profile.value,
        "engine": whole.engine,
        "no_draft": _speeds(bare, whole) if bare else None,
        "drafts": [_draft(draft, whole) for draft in whole.drafts],
        "rivals": [
            {"name": rival.name, **plain(rival.key.ngram), **_figures(rival, whole)}
            for rival in whole.rivals
        ],
        **({"slots": [plain(speed) for speed in whole.slots]} if whole.slots else {}),
        "two_stage": [
            {"name": one.name, **plain(one.key), **_figures(one, whole)} for one in whole.two_stage
        ],
        "warnings": list(whole.warnings),
    }


def _draft(draft: DraftPrediction, whole: TracePrediction) -> dict[str, Any]:
    return {
        "name": draft.name,
        "path": str(draft.path),
        "file_bytes": draft.file_bytes,
        "replay": plain(draft.replay),
        "best": draft.best if whole.no_draft else None,
        "settings": [
            {**plain(one.key.settings), **_figures(one, whole, even)}
            for one, even in zip(draft.settings, draft.break_even, strict=True)
        ],
        "rejection_sampling": [
            {**plain(one), "acceptance": one.acceptance, "acceptance_length": one.acceptance_length}
            for one in draft.sampled
        ],
        "sampling_chains": [
            {
                **{name: getattr(one.sampling, name) for name in CHAIN},
                "n_max": one.n_max,
                **{
                    rule: {
                        "acceptance": [end.acceptance for end in ends],
                        "decode_tokens_per_s": [end.decode_tokens_per_s for end in ends],
                    }
                    for rule, ends in (
                        ("engine", one.engine),
                        ("rejection_sampling", one.rejection),
                    )
                },
            }
            for one in draft.expected
        ],
        "parallel": dict(zip(("pearl", "dsi"), map(plain, draft.parallel), strict=False)),
    }


def _speeds(forecast: Forecast, whole: TracePrediction) -> dict[str, float | None]:
    found = forecast.figures
    return {
        "decode_tokens_per_s": found.decode_speed,
        "end_to_end_tokens_per_s": found.end_to_end_speed if whole.prefill_known else None,
    }


def _figures(
    forecast: Forecast, whole: TracePrediction, break_even: float | None = None
) -> dict[str, Any]:
    found = forecast.figures
    timed = {
        **_speeds(forecast, whole),
        "break_even_acceptance": break_even,
        "seconds": plain(forecast.spent),
        "categories": _by_category(forecast),
    }
    return {
        "draft_n": found.drafted or 0,
        "draft_n_accepted": found.accepted or 0,
        "cycles": found.cycles,
        "acceptance": found.acceptance_rate,
        "acceptance_length": found.acceptance_length,
        "by_depth": [{"drafted": d, "accepted": a} for d, a in forecast.by_depth],
        **(timed if whole.no_draft else dict.fromkeys(timed)),
    }


def _by_category(forecast: Forecast) -> dict[str, float]:
    """Decode speed of each category that has one."""
    found = by_category(forecast.runs)
    return {name: speed for name, one in found.items() if (speed := one.decode_speed)}


def show(whole: TracePrediction, output: Output) -> None:
    """Every draft alone, then all of them next to no draft; warnings and what the numbers rest
    on go to stderr."""
    output.emit(document(whole))
    for warning in whole.warnings:
        output.warn(warning)
    header = whole.trace.header
    at = f"temperature {header.sampler.temperature:g}" if header.sampler.temperature else "greedy"
    output.say(
        f"{header.target_name}, {plural(len(whole.trace), 'reply', 'replies')}, {at}; counted as "
        f"{whole.profile.value}"
    )
    output.say(NOT_CHECKED)
    for draft in whole.drafts:
        _show_draft(draft, whole, output)
    _show_all(whole, output)
    _show_slots(whole, output)
    for line in what_ifs(whole):
        output.data(line)
    if whole.no_draft is None:
        output.say(
            "no speeds: give the target's file (--target GGUF) to time it here, or its times "
            "(--verify 1:146,2:170,5:220)"
        )


def _show_slots(whole: TracePrediction, output: Output) -> None:
    """Each draft at its best length by slots, and of each number of slots whether any pays."""
    if not whole.slots:
        return
    rows: list[tuple[object, ...]] = []
    for slots in sorted({speed.slots for speed in whole.slots}):
        here = [speed for speed in whole.slots if speed.slots == slots]
        bare = next((speed for speed in here if speed.settings is None), None)
        for name in dict.fromkeys(speed.draft for speed in here):
            best = max(
                (speed for speed in here if speed.draft == name),
                key=lambda speed: speed.predicted_tokens_per_s,
            )
            rows.append(
                (
                    slots,
                    name or NO_DRAFT,
                    best.settings.n_max if best.settings is not None else None,
                    number(best.predicted_tokens_per_s, ".2f"),
                    number(gain(bare, best, live=False), ".2f"),
                    number(best.predicted_each_tokens_per_s, ".2f"),
                )
            )
    output.data("")
    output.data("Requests in parallel, as many clients as slots, all slots together")
    heads = ("slots", "draft", "n_max", "t/s", "speedup", "t/s a client sees")
    output.table(rows, [Column(head, "left" if head == "draft" else "right") for head in heads])
    for line in answers(whole.slots):
        output.data(line)


def _show_draft(draft: DraftPrediction, whole: TracePrediction, output: Output) -> None:
    replay, bare = draft.replay, whole.no_draft
    output.data(
        f"{draft.name}: the target's token is the draft's first choice at {replay.matches} of "
        f"{replay.positions} ({number(replay.match_rate, '.1%')})"
    )
    asked = [one.key.settings for one in draft.settings]
    with_p_min = any(s is not None and s.p_min for s in asked)
    titles = ("n_max", *(("p_min",) if with_p_min else ()), "acceptance", "tokens a cycle")
    rows: list[tuple[object, ...]] = []
    if bare is not None:
        rows.append((NO_DRAFT, *(None,) * (len(titles) - 1), *_cells(bare, whole), ""))
    for place, (one, settings) in enumerate(zip(draft.settings, asked, strict=True)):
        assert settings is not None, "of a draft"
        rows.append(
            (
                settings.n_max,
                *((f"{settings.p_min:g}",) if with_p_min else ()),
                number(one.figures.acceptance_rate, ".1%"),
                number(one.figures.acceptance_length, ".2f"),
                *_cells(one, whole),
                "best" if place == draft.best and _speedup(one, whole) > 1 else "",
            )
        )
    output.table(rows, [*right(*titles, *_titles(whole)), ""])
    if draft.sampled:
        output.data("")
        output.data(
            f"{draft.name}, if the server verified by rejection sampling (expected; {TAIL})"
        )
        heads = ("n_max", "acceptance", "tokens a cycle", "decode t/s", "decode speedup")
        rows = [_sampled_cells(one, whole) for one in draft.sampled]
        output.table(rows, right(*(heads if bare else heads[:3])))
    _show_best(draft, whole, output)
    output.data("")


def _titles(whole: TracePrediction) -> tuple[str, ...]:
    if whole.no_draft is None:
        return ()
    end_to_end = ("end-to-end t/s", "end-to-end speedup") if whole.prefill_known else ()
    return ("decode t/s", "decode speedup", *end_to_end)


def _cells(forecast: Forecast, whole: TracePrediction) -> tuple[str | None, ...]:
    """What :func:`_titles` announce."""
    if whole.no_draft is None:
        return ()
    cells: list[str | None] = []
    for speed, base in zip(
        _speeds(forecast, whole).values(), _speeds(whole.no_draft, whole).values(), strict=True
    ):
        if speed and base:
            cells += [f"{speed:.1f}", f"{speed / base:.2f}x"]
    return tuple(cells)


def _speedup(forecast: Forecast, whole: TracePrediction) -> float:
    """What a user has of it: end to end, or of decoding where prompts were not timed; 0 where no
    times are known."""
    if whole.no_draft is None:
        return 0.0
    name = "end_to_end_tokens_per_s" if whole.prefill_known else "decode_tokens_per_s"
    speed, base = (_speeds(one, whole)[name] or 0.0 for one in (forecast, whole.no_draft))
    return speed / base if base else 0.0


def _show_all(whole: TracePrediction, output: Output) -> None:
    """Does it pay: every draft at its best length, and every rival, next to no draft, and one line
    of it."""
    others = (*whole.rivals, *whole.two_stage)
    if whole.no_draft is None:
        last = [(draft, draft.settings[-1]) for draft in whole.drafts]
        if last:
            lengths = [s.n_max for one in whole.drafts[0].settings if (s := one.key.settings)]
            rates = (
                f"{draft.name} {number(one.figures.acceptance_rate, '.1%')}" for draft, one in last
            )
            output.data(f"acceptance at n_max={max(lengths)}: {', '.join(rates)}")
        for rival in others:
            found = rival.figures
            output.data(
                f"{rival.name}: {found.accepted or 0} of {found.drafted or 0} drafted "
                f"tokens accepted, {number(found.acceptance_length, '.2f')} tokens a cycle"
            )
        return
    # A rival has no length at which it just pays.
    contenders = [
        *((_named(d), d.settings[d.best], d.break_even[d.best]) for d in whole.drafts),
        *((one.name, one, None) for one in others),
    ]
    contenders.sort(key=lambda c: -_speedup(c[1], whole))
    rows: list[tuple[object, ...]] = [
        (
            name,
            number(one.figures.acceptance_rate, ".1%"),
            number(even, ".1%"),
            *_cells(one, whole),
        )
        for name, one, even in contenders
    ]
    rows.append((NO_DRAFT, None, None, *_cells(whole.no_draft, whole)))
    output.table(rows, ["candidate", *right("acceptance", "pays from", *_titles(whole))])
    output.data("")
    how = "end to end" if whole.prefill_known else "decoding"
    (first, fastest), *rest = [(name, _speedup(one, whole)) for name, one, _ in contenders]
    line = (
        f"{first} is {fastest:.2f}x as fast as no draft {how}, predicted on "
        f"{plural(len(whole.trace), 'reply', 'replies')}"
    )
    if rest:
        line += f"; {', '.join(f'{name} {speedup:.2f}x' for name, speedup in rest)}"
    output.data(f"drafting pays: {line}" if fastest > 1 else f"{NOT_WORTH_IT}: the fastest, {line}")


def what_ifs(whole: TracePrediction) -> Iterator[str]:
    """What else could be done, a line each, and whether it is worth it."""
    for draft in whole.drafts:
        for chain in dict.fromkeys(one.sampling for one in draft.expected):
            yield _at_chain(draft, [one for one in draft.expected if one.sampling == chain], whole)
    for draft in whole.drafts:
        if draft.parallel and whole.no_draft is not None:
            yield _beside(draft, whole.no_draft.figures)


def _at_chain(
    draft: DraftPrediction, rows: Sequence[ChainExpectation], whole: TracePrediction
) -> str:
    """A draft at its best length under another sampling chain, by both rules."""
    bare = whole.no_draft.figures.decode_speed if whole.no_draft is not None else None
    parts = []
    gains = []
    for rule, words in (("engine", ""), ("rejection", "by rejection sampling ")):
        ends = [(one.n_max, getattr(one, rule)) for one in rows]
        n_max, (low, high) = max(ends, key=lambda pair: _worth(pair[1][0]))
        parts.append(f"{words}n_max={n_max} {_span(low.acceptance, high.acceptance)} accepted")
        if bare and low.decode_tokens_per_s is not None:
            gains.append(low.decode_tokens_per_s / bare)
            parts[-1] += f" and {gains[-1]:.2f}x as fast as no draft decoding"
    line = f"{draft.name} at {rows[0].sampling.chain}, expected on this text: {'; '.join(parts)}"
    return f"{NOT_WORTH_IT}: {line}" if gains and max(gains) <= 1 else line


def _worth(one: SampledPrediction) -> tuple[float, float]:
    """By speed, or without times by tokens a cycle."""
    return one.decode_tokens_per_s or 0.0, one.acceptance_length or 0.0


def _span(low: float | None, high: float | None) -> str:
    """``62.1%``, or ``62.1 to 63.4%`` where what was not stored matters."""
    if low is None or high is None:
        return "nothing"
    ends = dict.fromkeys(f"{100 * end:.1f}" for end in (low, high))
    return f"{' to '.join(ends)}%"


def _beside(draft: DraftPrediction, no_draft: Figures) -> str:
    """Drafting while the target verifies, on a device of the draft's own."""
    one, many = draft.parallel
    bare = no_draft.decode_speed or 0.0
    now = draft.settings[draft.best].figures.decode_speed or 0.0
    line = (
        f"{draft.name} written during verification (no engine does; a device of its own, tokens "
        f"travel in no time): PEARL n_max={one.n_max} {one.decode_tokens_per_s / bare:.2f}x no "
        f"draft decoding, DSI with {plural(many.servers, 'target server')} "
        f"{many.decode_tokens_per_s / bare:.2f}x; as it is, {now / bare:.2f}x"
    )
    fastest = max(one.decode_tokens_per_s, many.decode_tokens_per_s)
    return line if fastest > max(now, bare) else f"{NOT_WORTH_IT}: {line}"


def _named(draft: DraftPrediction) -> str:
    settings = draft.settings[draft.best].key.settings
    assert settings is not None, "of a draft"
    name = f"{draft.name} n_max={settings.n_max}"
    return f"{name} p_min={settings.p_min:g}" if settings.p_min else name


def _sampled_cells(one: SampledPrediction, whole: TracePrediction) -> tuple[object, ...]:
    """No end-to-end figure: prefill is the same as in the table above."""
    cells = (one.n_max, number(one.acceptance, ".1%"), number(one.acceptance_length, ".2f"))
    bare = whole.no_draft.figures.decode_speed if whole.no_draft is not None else None
    speed = one.decode_tokens_per_s
    return (*cells, f"{speed:.1f}", f"{speed / bare:.2f}x") if bare and speed is not None else cells


def _show_best(draft: DraftPrediction, whole: TracePrediction, output: Output) -> None:
    name, best = _named(draft), draft.settings[draft.best]
    output.data("")
    output.data(f"{name}: accepted by place in the draft")
    depths = [
        (place, f"{accepted}/{drafted}", f"{accepted / drafted:.1%}")
        for place, (drafted, accepted) in enumerate(best.by_depth, 1)
        if drafted
    ]
    output.table(depths, right("place", "accepted/drafted", "acceptance"))
    if whole.no_draft is None:
        return
    output.data("")
    output.data(f"{name}: where the time goes")
    spent = {
        "target verifies": best.spent.verify_s,
        "draft writes": best.spent.draft_s,
        "draft follows": best.spent.mirror_s,
        "sampling": best.spent.sample_s,
    }
    shares = [(what, f"{s / best.spent.total_s:.1%}") for what, s in spent.items() if s]
    output.table(shares, ["", *right("share")])
    output.data("")
    output.data(f"{name}: by category; the total is token-weighted (harmonic)")
    mine, theirs = (
        {**_by_category(one), "total": one.figures.decode_speed} for one in (best, whole.no_draft)
    )
    rows = [(what, number(mine[what], ".1f"), number(theirs.get(what), ".1f")) for what in mine]
    output.table(rows, ["category", *right("decode t/s", "no draft's decode t/s")])


def _show_typed(request: PredictRequest, out: Output) -> None:
    """The table from typed numbers, what they come to in a line, and what that leaves out."""
    found = predict_typed(request)
    if found.constant:
        out.warn(
            CONSTANT,
            hint="--verify 1:146,2:170,5:220, as llama-batched-bench measures",
        )
    for warning in found.warnings:
        out.warn(warning)
    best = max(found.rows, key=lambda row: row.decode_tokens_per_s)
    out.emit(
        {
            "alpha": found.alpha,
            "no_draft_tokens_per_s": found.no_draft_tokens_per_s,
            "settings": found.rows,
            "best": found.rows.index(best),
            "best_length_closed_form": found.best_length,
            "warnings": found.warnings,
            "caveat": CAVEAT,
        }
    )
    speed = number(found.no_draft_tokens_per_s, ".2f")
    rows: list[tuple[object, ...]] = [(NO_DRAFT, None, None, None, speed, "1.00x", None, "")]
    rows += [
        (
            row.n_max,
            number(row.acceptance, ".1%"),
            number(row.acceptance_length, ".2f"),
            number(row.cycle_ms, ".2f"),
            number(row.decode_tokens_per_s, ".2f"),
            f"{row.speedup:.2f}x",
            number(row.break_even, ".1%"),
            "best" if row is best and row.speedup > 1 else "",
        )
        for row in found.rows
    ]
    titles = (
        *("n_max", "acceptance", "tokens a cycle", "cycle ms", "decode t/s", "decode speedup"),
        "pays from",
    )
    out.table(rows, [*right(*titles), ""])
    out.data("")
    out.data(_typed_verdict(found, best))
    out.warn(CAVEAT)


def _typed_verdict(found: TypedPrediction, row: IidRow) -> str:
    """Whether it pays, and at which length, in a line."""
    line = (
        f"n_max={row.n_max} is {row.speedup:.2f}x as fast as no draft decoding, predicted: "
        f"{row.decode_tokens_per_s:.2f} t/s for {found.no_draft_tokens_per_s:.2f}"
        + ("; every batch taken to cost one token's time" if found.constant else "")
    )
    return f"drafting pays: {line}" if row.speedup > 1 else f"{NOT_WORTH_IT}: the fastest, {line}"
