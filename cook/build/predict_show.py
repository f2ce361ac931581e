"""``cook predict``, answered in print: settings by speed, then the best one in detail."""

from __future__ import annotations

from typing import Any

from cook.build.predict import (
    DraftPrediction,
    PredictRequest,
    SettingPrediction,
    TracePrediction,
    predict_on_trace,
    predict_typed,
)
from cook.output import Column, Output, plain
from cook.scoring.iid import CAVEAT
from cook.scoring.price import Breakdown, PricedReplies
from cook.scoring.sampled import SampledPrediction

TAIL = "the draft draws at the target's temperature from all its tokens"
NOT_CHECKED = "counts are this engine's by its source; `cook score` checks them against a live run"


def answer(request: PredictRequest, output: Output) -> None:
    """Predict from a trace, or from ``--acceptance`` without one, and print it."""
    if request.acceptance is None:
        show(predict_on_trace(request, output), output)
    else:
        _show_typed(request, output)


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
        "http_agreement": [
            {**plain(one), "error_points": one.error_points} for one in draft.agreement
        ],
        "rejection_sampling": [
            {**plain(one), "acceptance": one.acceptance, "acceptance_length": one.acceptance_length}
            for one in draft.sampled
        ],
    }


def _row(row: SettingPrediction, whole: TracePrediction) -> dict[str, Any]:
    priced = row.priced
    speeds = {
        "decode_tokens_per_s": priced.decode_tokens_per_s,
        "end_to_end_tokens_per_s": _end_to_end(priced, whole),
        "break_even_acceptance": row.break_even,
        "seconds": plain(priced.breakdown),
        "categories": dict(priced.categories),
    }
    return {
        **plain(priced.setting),
        "draft_n": priced.draft_n,
        "draft_n_accepted": priced.draft_n_accepted,
        "cycles": priced.cycles,
        "acceptance": priced.acceptance,
        "acceptance_length": priced.acceptance_length,
        "by_depth": [{"drafted": d, "accepted": a} for d, a in row.forecast.by_depth],
        **(speeds if whole.no_draft else dict.fromkeys(speeds)),
    }


def _end_to_end(priced: PricedReplies, whole: TracePrediction) -> float | None:
    return priced.end_to_end_tokens_per_s if whole.prefill_known else None


def show(whole: TracePrediction, output: Output) -> None:
    """The tables of every draft; warnings and what the numbers rest on go to stderr."""
    output.emit(document(whole))
    for warning in whole.warnings:
        output.warn(warning)
    header = whole.trace.header
    at = f"temperature {header.sampler.temperature:g}" if header.sampler.temperature else "greedy"
    output.say(
        f"{header.target_name}, {len(whole.trace)} replies, {at}; counted as {whole.profile.value}"
    )
    for draft in whole.drafts:
        _show_draft(draft, whole, output)
    output.say(NOT_CHECKED)
    if whole.no_draft is None:
        output.say(
            "no speeds: give the target's file (--target GGUF) to time it here, or its times "
            "(--verify 1:146,2:170,5:220)"
        )


def _show_draft(draft: DraftPrediction, whole: TracePrediction, output: Output) -> None:
    replay = draft.replay
    output.data("")
    if replay is not None:
        output.data(
            f"{draft.name}: the target's token is the draft's first choice at {replay.matches} of "
            f"{replay.positions} ({_percent(replay.match_rate)})"
        )
    else:
        output.data(f"{draft.name}, replayed over HTTP")
    right = [
        Column(title, "right")
        for title in (
            *("n_max", "p_min", "accepted/drafted", "acceptance", "length"),
            *(("t/s", "end to end", "speedup", "break-even") if whole.no_draft else ()),
        )
    ]
    best = draft.best
    pays = whole.no_draft is not None and (
        best.priced.decode_tokens_per_s > whole.no_draft.decode_tokens_per_s
    )
    rows = [(*_cells(row, whole), "best" if row is best and pays else "") for row in draft.settings]
    output.table(rows, [*right, ""])
    if whole.no_draft and not pays:
        output.data("no draft is fastest")
    for row, agreed in zip(draft.settings, draft.agreement, strict=False):
        output.data(f"over HTTP and by the worker, n_max={row.priced.setting.n_max}: {agreed}")
    if draft.sampled:
        output.data("")
        output.data(
            f"{draft.name}, if the server verified by rejection sampling (expected; {TAIL})"
        )
        output.table([_sampled_cells(one, whole) for one in draft.sampled], [right[0], *right[2:8]])
    _show_best(draft, best, whole, output)


def _cells(row: SettingPrediction, whole: TracePrediction) -> tuple[object, ...]:
    priced = row.priced
    cells: tuple[object, ...] = (
        priced.setting.n_max,
        f"{priced.setting.p_min:g}",
        f"{priced.draft_n_accepted}/{priced.draft_n}",
        _percent(priced.acceptance),
        _number(priced.acceptance_length),
    )
    if whole.no_draft is None:
        return cells
    return (
        *cells,
        _number(priced.decode_tokens_per_s, 1),
        _number(_end_to_end(priced, whole), 1),
        f"{priced.decode_tokens_per_s / whole.no_draft.decode_tokens_per_s:.3f}x",
        _percent(row.break_even),
    )


def _sampled_cells(one: SampledPrediction, whole: TracePrediction) -> tuple[object, ...]:
    cells: tuple[object, ...] = (
        one.n_max,
        f"{one.draft_n_accepted:.1f}/{one.draft_n:.1f}",
        _percent(one.acceptance),
        _number(one.acceptance_length),
    )
    speed = one.decode_tokens_per_s
    if whole.no_draft is None or speed is None:
        return cells
    # no end-to-end figure: prefill is the same as above
    return (
        *cells,
        _number(speed, 1),
        None,
        f"{speed / whole.no_draft.decode_tokens_per_s:.3f}x",
    )


def _show_best(
    draft: DraftPrediction, row: SettingPrediction, whole: TracePrediction, output: Output
) -> None:
    setting = row.priced.setting
    name = f"{draft.name} n_max={setting.n_max}"
    name += f" p_min={setting.p_min:g}" if setting.p_min else ""
    output.data("")
    output.data(f"{name}: accepted by place in the draft")
    depths = [
        (place, f"{accepted}/{drafted}", _percent(accepted / drafted))
        for place, (drafted, accepted) in enumerate(row.forecast.by_depth, 1)
        if drafted
    ]
    titles = ("place", "accepted/drafted", "of drafted")
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
    output.table(rows, ["category", Column("t/s", "right"), Column("no draft", "right")])


def _parts(spent: Breakdown) -> list[tuple[str, str]]:
    named = {
        "target verifies": spent.verify_s,
        "draft writes": spent.draft_s,
        "draft follows": spent.mirror_s,
        "sampling": spent.sample_s,
        "overhead": spent.overhead_s,
    }
    return [(name, f"{100 * part / spent.total_s:.1f} %") for name, part in named.items() if part]


def _show_typed(request: PredictRequest, out: Output) -> None:
    """The table from typed numbers, with what it leaves out."""
    prediction = predict_typed(request)
    rows, speed = prediction.rows, prediction.no_draft_tokens_per_s
    if prediction.constant:
        out.warn(
            "every batch is taken to cost what one token costs; verification is dearer",
            hint="--verify 1:146,2:170,5:220, as llama-batched-bench measures",
        )
    best = max(rows, key=lambda row: row.decode_tokens_per_s)
    out.emit(
        {
            "alpha": prediction.alpha,
            "no_draft_tokens_per_s": speed,
            "settings": rows,
            "best": rows.index(best),
            "best_length_closed_form": prediction.best_length,
            "caveat": CAVEAT,
        }
    )
    cells = [
        (
            row.n_max,
            _percent(row.acceptance),
            _number(row.acceptance_length),
            _number(row.cycle_ms),
            _number(row.decode_tokens_per_s),
            f"{row.speedup:.3f}x",
            _percent(row.break_even),
            "best" if row is best and row.speedup > 1 else "",
        )
        for row in rows
    ]
    titles = ("n_max", "acceptance", "length", "cycle ms", "t/s", "speedup", "break-even")
    out.table(cells, [*(Column(t, "right") for t in titles), ""])
    out.say(f"no draft: {speed:.2f} t/s")
    if best.speedup <= 1:
        out.say("no draft is fastest")
    out.warn(CAVEAT)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def _number(value: float | None, digits: int = 2) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
