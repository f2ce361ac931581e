"""``cook predict``, answered in print: settings by speed, then the best one in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cook.build.forecast import Forecast
from cook.build.predict import (
    CONSTANT,
    DraftPrediction,
    PredictRequest,
    SettingPrediction,
    TracePrediction,
    TypedPrediction,
    predict_on_trace,
    predict_typed,
)
from cook.build.what_if import ChainExpectation
from cook.output import Column, Output, plain
from cook.report.sections.in_parallel import answers, gain
from cook.scoring.iid import CAVEAT, IidRow
from cook.scoring.price import Breakdown, PricedReplies
from cook.scoring.sampled import SampledPrediction
from cook.units import plural

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
    header = whole.trace.header
    return {
        "trace": str(whole.trace.path),
        "target": header.target_name,
        "replies": len(whole.trace),
        "sampler": plain(header.sampler),
        "profile": whole.profile.value,
        "engine": whole.engine,
        "no_draft": {
            "decode_tokens_per_s": whole.no_draft.decode_tokens_per_s,
            "end_to_end_tokens_per_s": _end_to_end(whole.no_draft, whole),
        }
        if whole.no_draft
        else None,
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
        "best": draft.settings.index(draft.best) if whole.no_draft else None,
        "settings": [_row(row, whole) for row in draft.settings],
        "rejection_sampling": [
            {**plain(one), "acceptance": one.acceptance, "acceptance_length": one.acceptance_length}
            for one in draft.sampled
        ],
        "sampling_chains": [_expectation(one) for one in draft.expected],
        "parallel": dict(zip(("pearl", "dsi"), map(plain, draft.parallel), strict=False)),
    }


def _expectation(one: ChainExpectation) -> dict[str, Any]:
    rules = {"engine": one.engine, "rejection_sampling": one.rejection}
    return {
        **{name: getattr(one.sampling, name) for name in CHAIN},
        "n_max": one.n_max,
        **{
            rule: {
                "acceptance": [end.acceptance for end in ends],
                "decode_tokens_per_s": [end.decode_tokens_per_s for end in ends],
            }
            for rule, ends in rules.items()
        },
    }


def _row(row: SettingPrediction, whole: TracePrediction) -> dict[str, Any]:
    return {**plain(row.priced.setting), **_figures(row.forecast, whole, row.break_even)}


def _figures(
    forecast: Forecast, whole: TracePrediction, break_even: float | None = None
) -> dict[str, Any]:
    priced = forecast.priced
    speeds = {
        "decode_tokens_per_s": priced.decode_tokens_per_s,
        "end_to_end_tokens_per_s": _end_to_end(priced, whole),
        "break_even_acceptance": break_even,
        "seconds": plain(priced.breakdown),
        "categories": dict(priced.categories),
    }
    return {
        "draft_n": priced.draft_n,
        "draft_n_accepted": priced.draft_n_accepted,
        "cycles": priced.cycles,
        "acceptance": priced.acceptance,
        "acceptance_length": priced.acceptance_length,
        "by_depth": [{"drafted": d, "accepted": a} for d, a in forecast.by_depth],
        **(speeds if whole.no_draft else dict.fromkeys(speeds)),
    }


def _end_to_end(priced: PricedReplies, whole: TracePrediction) -> float | None:
    return priced.end_to_end_tokens_per_s if whole.prefill_known else None


def show(whole: TracePrediction, output: Output) -> None:
    """Every draft by itself, then all of them beside no draft; warnings and what the numbers rest
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
                    _number(best.predicted_tokens_per_s),
                    _number(gain(bare, best, live=False)),
                    _number(best.predicted_each_tokens_per_s),
                )
            )
    output.data("")
    output.data("Requests in parallel, as many clients as slots, all slots together")
    heads = ("slots", "draft", "n_max", "t/s", "speedup", "t/s a client sees")
    output.table(rows, [Column(head, "left" if head == "draft" else "right") for head in heads])
    for told in answers(whole.slots):
        output.data(told)


def _show_draft(draft: DraftPrediction, whole: TracePrediction, output: Output) -> None:
    replay = draft.replay
    output.data(
        f"{draft.name}: the target's token is the draft's first choice at {replay.matches} of "
        f"{replay.positions} ({_percent(replay.match_rate)})"
    )
    with_p_min = any(row.priced.setting.p_min for row in draft.settings)
    titles = ("n_max", *(("p_min",) if with_p_min else ()), "acceptance", "tokens a cycle")
    right = [Column(title, "right") for title in (*titles, *_speed_titles(whole))]
    rows: list[tuple[object, ...]] = []
    if whole.no_draft is not None:
        blank = (None,) * (len(titles) - 1)
        rows.append((NO_DRAFT, *blank, *_speeds(whole.no_draft, whole), ""))
    rows += [
        (
            row.priced.setting.n_max,
            *((f"{row.priced.setting.p_min:g}",) if with_p_min else ()),
            _percent(row.priced.acceptance),
            _number(row.priced.acceptance_length),
            *_speeds(row.priced, whole),
            "best" if row is draft.best and _pays(row.priced, whole) else "",
        )
        for row in draft.settings
    ]
    output.table(rows, [*right, ""])
    if draft.sampled:
        output.data("")
        output.data(
            f"{draft.name}, if the server verified by rejection sampling (expected; {TAIL})"
        )
        heads = ("n_max", "acceptance", "tokens a cycle", "decode t/s", "decode speedup")
        wanted = [Column(t, "right") for t in (heads if whole.no_draft else heads[:3])]
        output.table([_sampled_cells(one, whole) for one in draft.sampled], wanted)
    _show_best(draft, draft.best, whole, output)
    output.data("")


def _speed_titles(whole: TracePrediction) -> tuple[str, ...]:
    if whole.no_draft is None:
        return ()
    end_to_end = ("end-to-end t/s", "end-to-end speedup") if whole.prefill_known else ()
    return ("decode t/s", "decode speedup", *end_to_end)


def _speeds(priced: PricedReplies, whole: TracePrediction) -> tuple[str | None, ...]:
    """What :func:`_speed_titles` announce."""
    bare = whole.no_draft
    if bare is None:
        return ()
    decode = _decode_speedup(priced, whole)
    cells = (_number(priced.decode_tokens_per_s, 1), f"{decode:.2f}x")
    if not whole.prefill_known:
        return cells
    ratio = priced.end_to_end_tokens_per_s / bare.end_to_end_tokens_per_s
    return (*cells, _number(priced.end_to_end_tokens_per_s, 1), f"{ratio:.2f}x")


def _decode_speedup(priced: PricedReplies, whole: TracePrediction) -> float:
    assert whole.no_draft is not None, "asked where times are known"
    return priced.decode_tokens_per_s / whole.no_draft.decode_tokens_per_s


def _speedup(priced: PricedReplies, whole: TracePrediction) -> float:
    """What a user has of it: end to end, or of decoding where prompts were not timed."""
    assert whole.no_draft is not None, "asked where times are known"
    if whole.prefill_known:
        return priced.end_to_end_tokens_per_s / whole.no_draft.end_to_end_tokens_per_s
    return _decode_speedup(priced, whole)


def _pays(priced: PricedReplies, whole: TracePrediction) -> bool:
    return whole.no_draft is not None and _speedup(priced, whole) > 1


def _show_all(whole: TracePrediction, output: Output) -> None:
    """Does it pay: every draft at its best length, and every rival, beside no draft, and one line
    of it."""
    if whole.no_draft is None:
        told = [
            f"{draft.name} {_percent(row.priced.acceptance)}"
            for draft in whole.drafts
            for row in draft.settings[-1:]
        ]
        if told:
            length = max(row.priced.setting.n_max for row in whole.drafts[0].settings)
            output.data(f"acceptance at n_max={length}: {', '.join(told)}")
        for rival in (*whole.rivals, *whole.two_stage):
            output.data(
                f"{rival.name}: {rival.priced.draft_n_accepted} of {rival.priced.draft_n} drafted "
                f"tokens accepted, {_number(rival.priced.acceptance_length)} tokens a cycle"
            )
        return
    ordered = sorted(_contenders(whole), key=lambda one: -_speedup(one.priced, whole))
    rows: list[tuple[object, ...]] = [
        (
            one.name,
            _percent(one.priced.acceptance),
            _percent(one.break_even),
            *_speeds(one.priced, whole),
        )
        for one in ordered
    ]
    rows.append((NO_DRAFT, None, None, *_speeds(whole.no_draft, whole)))
    titles = ("acceptance", "pays from", *_speed_titles(whole))
    output.table(rows, ["candidate", *(Column(t, "right") for t in titles)])
    output.data("")
    output.data(_verdict(ordered, whole))


def what_ifs(whole: TracePrediction) -> Iterator[str]:
    """What else could be done, a line each, and whether it is worth it."""
    for draft in whole.drafts:
        for chain in dict.fromkeys(one.sampling for one in draft.expected):
            yield _at_chain(draft, [one for one in draft.expected if one.sampling == chain], whole)
    if whole.no_draft is None:
        return
    for draft in whole.drafts:
        if draft.parallel:
            yield _beside(draft, whole)


def _at_chain(
    draft: DraftPrediction, rows: Sequence[ChainExpectation], whole: TracePrediction
) -> str:
    """A draft at its best length under another sampling chain, by both rules."""
    bare = whole.no_draft
    rules = (("engine", ""), ("rejection", "by rejection sampling "))
    parts = []
    gains = []
    for rule, words in rules:
        ends = [(one.n_max, getattr(one, rule)) for one in rows]
        n_max, (low, high) = max(ends, key=lambda pair: _worth(pair[1][0]))
        parts.append(f"{words}n_max={n_max} {_span(low.acceptance, high.acceptance)} accepted")
        if bare is not None and low.decode_tokens_per_s is not None:
            gain = low.decode_tokens_per_s / bare.decode_tokens_per_s
            gains.append(gain)
            parts[-1] += f" and {gain:.2f}x as fast as no draft decoding"
    told = f"{draft.name} at {rows[0].sampling.chain}, expected on this text: {'; '.join(parts)}"
    return f"{NOT_WORTH_IT}: {told}" if gains and max(gains) <= 1 else told


def _worth(one: SampledPrediction) -> tuple[float, float]:
    """By speed, or without times by tokens a cycle."""
    return one.decode_tokens_per_s or 0.0, one.acceptance_length or 0.0


def _span(low: float | None, high: float | None) -> str:
    """``62.1%``, or ``62.1 to 63.4%`` where what was not stored matters."""
    if low is None or high is None:
        return "nothing"
    ends = dict.fromkeys(f"{100 * end:.1f}" for end in (low, high))
    return f"{' to '.join(ends)}%"


def _beside(draft: DraftPrediction, whole: TracePrediction) -> str:
    """Drafting while the target verifies, on a device of the draft's own."""
    assert whole.no_draft is not None, "asked where times are known"
    one, many = draft.parallel
    bare = whole.no_draft.decode_tokens_per_s
    now = draft.best.priced.decode_tokens_per_s
    told = (
        f"{draft.name} written beside verification (no engine does; a device of its own, tokens "
        f"travel in no time): PEARL n_max={one.n_max} {one.decode_tokens_per_s / bare:.2f}x no "
        f"draft decoding, DSI with {plural(many.servers, 'target server')} "
        f"{many.decode_tokens_per_s / bare:.2f}x; as it is, {now / bare:.2f}x"
    )
    fastest = max(one.decode_tokens_per_s, many.decode_tokens_per_s)
    return told if fastest > max(now, bare) else f"{NOT_WORTH_IT}: {told}"


def _contenders(whole: TracePrediction) -> list[_Contender]:
    """Every draft at its best, every rival, and every rival before every draft."""
    return [
        *(_Contender(_named(d), d.best.priced, d.best.break_even) for d in whole.drafts),
        *(_Contender(rival.name, rival.priced) for rival in whole.rivals),
        *(_Contender(both.name, both.priced) for both in whole.two_stage),
    ]


@dataclass(frozen=True)
class _Contender:
    """A draft at its best, or a rival; that has no length at which it just pays."""

    name: str
    priced: PricedReplies
    break_even: float | None = None


def _verdict(ordered: Sequence[_Contender], whole: TracePrediction) -> str:
    """One line that compares all that draft, fastest first."""
    how = "end to end" if whole.prefill_known else "decoding"
    over = f"predicted on {plural(len(whole.trace), 'reply', 'replies')}"
    first, *rest = ordered
    speedup = _speedup(first.priced, whole)
    told = f"{first.name} is {speedup:.2f}x as fast as no draft {how}, {over}"
    if rest:
        others = (f"{one.name} {_speedup(one.priced, whole):.2f}x" for one in rest)
        told += f"; {', '.join(others)}"
    if not _pays(first.priced, whole):
        return f"{NOT_WORTH_IT}: the fastest, {told}"
    return f"drafting pays: {told}"


def _named(draft: DraftPrediction) -> str:
    setting = draft.best.priced.setting
    name = f"{draft.name} n_max={setting.n_max}"
    return f"{name} p_min={setting.p_min:g}" if setting.p_min else name


def _sampled_cells(one: SampledPrediction, whole: TracePrediction) -> tuple[object, ...]:
    cells: tuple[object, ...] = (
        one.n_max,
        _percent(one.acceptance),
        _number(one.acceptance_length),
    )
    speed = one.decode_tokens_per_s
    if whole.no_draft is None or speed is None:
        return cells
    # no end-to-end figure: prefill is the same as above
    ratio = speed / whole.no_draft.decode_tokens_per_s
    return (*cells, _number(speed, 1), f"{ratio:.2f}x")


def _show_best(
    draft: DraftPrediction, row: SettingPrediction, whole: TracePrediction, output: Output
) -> None:
    name = _named(draft)
    output.data("")
    output.data(f"{name}: accepted by place in the draft")
    depths = [
        (place, f"{accepted}/{drafted}", _percent(accepted / drafted))
        for place, (drafted, accepted) in enumerate(row.forecast.by_depth, 1)
        if drafted
    ]
    titles = ("place", "accepted/drafted", "acceptance")
    output.table(depths, [Column(t, "right") for t in titles])
    if whole.no_draft is None:
        return
    output.data("")
    output.data(f"{name}: where the time goes")
    output.table(_parts(row.priced.breakdown), ["", Column("share", "right")])
    output.data("")
    output.data(f"{name}: by category; the total is token-weighted (harmonic)")
    plain_speeds = whole.no_draft.categories
    rows: list[tuple[object, ...]] = [
        (category, _number(speed, 1), _number(plain_speeds.get(category), 1))
        for category, speed in row.priced.categories.items()
    ]
    total = row.priced.decode_tokens_per_s, whole.no_draft.decode_tokens_per_s
    rows.append(("total", *(_number(speed, 1) for speed in total)))
    heads = ("decode t/s", "no draft's decode t/s")
    output.table(rows, ["category", *(Column(title, "right") for title in heads)])


def _parts(spent: Breakdown) -> list[tuple[str, str]]:
    named = {
        "target verifies": spent.verify_s,
        "draft writes": spent.draft_s,
        "draft follows": spent.mirror_s,
        "sampling": spent.sample_s,
    }
    return [(name, f"{part / spent.total_s:.1%}") for name, part in named.items() if part]


def _show_typed(request: PredictRequest, out: Output) -> None:
    """The table from typed numbers, what they come to in a line, and what that leaves out."""
    found = predict_typed(request)
    rows, speed = found.rows, found.no_draft_tokens_per_s
    if found.constant:
        out.warn(
            CONSTANT,
            hint="--verify 1:146,2:170,5:220, as llama-batched-bench measures",
        )
    for warning in found.warnings:
        out.warn(warning)
    best = _fastest(rows)
    out.emit(_typed_document(found))
    bare = (NO_DRAFT, None, None, None, _number(speed), "1.00x", None, "")
    cells: list[tuple[object, ...]] = [
        (
            row.n_max,
            _percent(row.acceptance),
            _number(row.acceptance_length),
            _number(row.cycle_ms),
            _number(row.decode_tokens_per_s),
            f"{row.speedup:.2f}x",
            _percent(row.break_even),
            "best" if row is best and row.speedup > 1 else "",
        )
        for row in rows
    ]
    titles = (
        *("n_max", "acceptance", "tokens a cycle", "cycle ms", "decode t/s", "decode speedup"),
        "pays from",
    )
    out.table([bare, *cells], [*(Column(t, "right") for t in titles), ""])
    out.data("")
    out.data(_typed_verdict(found))
    out.warn(CAVEAT)


def _typed_document(prediction: TypedPrediction) -> dict[str, Any]:
    rows = prediction.rows
    return {
        "alpha": prediction.alpha,
        "no_draft_tokens_per_s": prediction.no_draft_tokens_per_s,
        "settings": rows,
        "best": rows.index(_fastest(rows)),
        "best_length_closed_form": prediction.best_length,
        "warnings": prediction.warnings,
        "caveat": CAVEAT,
    }


def _fastest(rows: Sequence[IidRow]) -> IidRow:
    return max(rows, key=lambda row: row.decode_tokens_per_s)


def _typed_verdict(found: TypedPrediction) -> str:
    """Whether it pays, and at which length, in a line."""
    row = _fastest(found.rows)
    told = (
        f"n_max={row.n_max} is {row.speedup:.2f}x as fast as no draft decoding, predicted: "
        f"{row.decode_tokens_per_s:.2f} t/s for {found.no_draft_tokens_per_s:.2f}"
        + ("; every batch taken to cost one token's time" if found.constant else "")
    )
    if row.speedup > 1:
        return f"drafting pays: {told}"
    return f"{NOT_WORTH_IT}: the fastest, {told}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _number(value: float | None, digits: int = 2) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
