"""``cook predict``, answered in print: one table of candidates, then the best in detail."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from cook.job.predict import (
    CONSTANT,
    DraftPrediction,
    PredictRequest,
    TracePrediction,
    predict_on_trace,
    predict_typed,
)
from cook.output import Column, Output, plain, right
from cook.record.record import SlotSpeed
from cook.report.sections.conditions import answers, gain
from cook.scoring.compare import by_category
from cook.scoring.iid import CAVEAT
from cook.scoring.price import Forecast
from cook.scoring.sampled import SampledPrediction
from cook.units import number, plural

NO_DRAFT = "no draft"
CHAIN = ("temperature", "top_k", "top_p", "min_p")
NOT_WORTH_IT = "not worth it"
NOT_CHECKED = "counts are this engine's by its source; `cook score` checks them against a live run"


def print_prediction(request: PredictRequest, output: Output) -> None:
    """Predict from a trace and print it; or from a typed acceptance without one: the table from
    typed numbers, what they come to in a line, and what that leaves out."""
    if not request.typed:
        show(predict_on_trace(request, output), output)
        return
    found = predict_typed(request)
    constant = request.verify_curve is not None and len(request.verify_curve.widths) == 1
    if constant:
        output.warn(CONSTANT, hint="--verify 1:146,2:170,5:220, as llama-batched-bench measures")
    for warning in found.warnings:
        output.warn(warning)
    output.emit(found)
    bare = PredictedRow(NO_DRAFT, decode_speed=found.no_draft_tokens_per_s)
    rows = [
        PredictedRow(
            f"n_max={one.n_max}",
            one.acceptance,
            one.acceptance_length,
            one.break_even,
            one.decode_tokens_per_s,
        )
        for one in found.settings
    ]
    best = rows[found.best]
    _show_rows([bare, *rows], bare, [best], output)
    output.data("")
    basis = f": {number(best.decode_speed)} t/s for {number(bare.decode_speed)}"
    taken = "; every batch taken to cost one token's time" if constant else ""
    output.data(_verdict([best], bare, basis + taken))
    output.warn(CAVEAT)


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
        "no_draft": _speeds_document(bare, whole) if bare else None,
        "drafts": [_draft_document(draft, whole) for draft in whole.drafts],
        "rivals": [
            {"name": rival.name, **plain(rival.key.ngram), **_figures(rival, whole)}
            for rival in whole.rivals
        ],
        **({"slots": plain(whole.slots)} if whole.slots else {}),
        "two_stage": [
            {"name": one.name, **plain(one.key), **_figures(one, whole)} for one in whole.two_stage
        ],
        "warnings": list(whole.warnings),
    }


def _draft_document(draft: DraftPrediction, whole: TracePrediction) -> dict[str, Any]:
    def ends(pair: Sequence[SampledPrediction]) -> dict[str, Any]:
        names = ("acceptance", "decode_tokens_per_s")
        return {name: [getattr(end, name) for end in pair] for name in names}

    return {
        "name": draft.name,
        "path": str(draft.path),
        "file_bytes": draft.path.stat().st_size,
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
                "engine": ends(one.engine),
                "rejection_sampling": ends(one.rejection),
            }
            for one in draft.expected
        ],
        "parallel": dict(zip(("pearl", "dsi"), map(plain, draft.parallel), strict=False)),
    }


def _figures(
    forecast: Forecast, whole: TracePrediction, break_even: float | None = None
) -> dict[str, Any]:
    found = forecast.figures
    timed = {
        **_speeds_document(forecast, whole),
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
        "by_depth": [{"drafted": d.drafted, "accepted": d.accepted} for d in forecast.by_depth],
        **(timed if whole.no_draft else dict.fromkeys(timed)),
    }


def _speeds_document(forecast: Forecast, whole: TracePrediction) -> dict[str, float | None]:
    found = forecast.figures
    return {
        "decode_tokens_per_s": found.decode_speed,
        "end_to_end_tokens_per_s": found.end_to_end_speed if whole.prefill_known else None,
    }


def _by_category(forecast: Forecast) -> dict[str, float]:
    """Decode speed of each category that has one."""
    found = by_category(forecast.runs)
    return {name: speed for name, one in found.items() if (speed := one.decode_speed)}


@dataclass(frozen=True)
class PredictedRow:
    """One line of the table; speeds in tokens a second, None where they are not known.
    ``break_even``: acceptance from which on it pays."""

    name: str
    acceptance: float | None = None
    acceptance_length: float | None = None
    break_even: float | None = None
    decode_speed: float | None = None
    end_to_end_speed: float | None = None

    def speedup(self, bare: PredictedRow) -> float:
        """What a user has of it over no draft: end to end, or of decoding where prompts were not
        timed; 0 where no times are known."""
        if bare.end_to_end_speed is not None:
            return (self.end_to_end_speed or 0.0) / bare.end_to_end_speed
        return (self.decode_speed or 0.0) / bare.decode_speed if bare.decode_speed else 0.0


def _show_rows(
    rows: Sequence[PredictedRow], bare: PredictedRow, best: Collection[PredictedRow], output: Output
) -> None:
    """The table, without columns of which nothing is known; ``best`` are marked where they pay."""

    def times(speed: float | None, base: float | None) -> str | None:
        return f"{speed / base:.2f}x" if speed and base else None

    cells = [
        {
            "acceptance": number(row.acceptance, ".1%"),
            "tokens a cycle": number(row.acceptance_length),
            "pays from": number(row.break_even, ".1%"),
            "decode t/s": number(row.decode_speed),
            "decode speedup": times(row.decode_speed, bare.decode_speed),
            "end-to-end t/s": number(row.end_to_end_speed),
            "end-to-end speedup": times(row.end_to_end_speed, bare.end_to_end_speed),
        }
        for row in rows
    ]
    shown = [title for title in cells[0] if any(found[title] for found in cells)]
    marks = ["best" if row in best and row.speedup(bare) > 1 else "" for row in rows]
    output.table(
        [
            (row.name, *(found[title] for title in shown), mark)
            for row, found, mark in zip(rows, cells, marks, strict=True)
        ],
        ["candidate", *right(*shown), ""],
    )


def _verdict(rows: Sequence[PredictedRow], bare: PredictedRow, basis: str) -> str:
    """Whether drafting pays, in a line: the fastest of ``rows``, then the others."""
    ranked = sorted(rows, key=lambda row: -row.speedup(bare))
    how = "decoding" if bare.end_to_end_speed is None else "end to end"
    fastest = ranked[0].speedup(bare)
    line = f"{ranked[0].name} is {fastest:.2f}x as fast as no draft {how}, predicted{basis}"
    if others := [f"{row.name} {row.speedup(bare):.2f}x" for row in ranked[1:]]:
        line += f"; {', '.join(others)}"
    return f"drafting pays: {line}" if fastest > 1 else f"{NOT_WORTH_IT}: the fastest, {line}"


def show(whole: TracePrediction, output: Output) -> None:
    """Every candidate in one table, whether one pays, and the best length of each draft in detail;
    warnings and what the numbers rest on go to stderr."""
    output.emit(document(whole))
    for warning in whole.warnings:
        output.warn(warning)
    header, replies = whole.trace.header, plural(len(whole.trace), "reply", "replies")
    at = f"temperature {header.sampler.temperature:g}" if header.sampler.temperature else "greedy"
    output.say(f"{header.target_name}, {replies}, {at}; counted as {whole.profile.value}")
    output.say(NOT_CHECKED)
    for draft in whole.drafts:
        output.data(
            f"{draft.name}: the target's token is the draft's first choice at "
            f"{draft.replay.matches} of {draft.replay.positions} "
            f"({number(draft.replay.match_rate, '.1%')})"
        )
    bare, best = PredictedRow(NO_DRAFT), []
    rows: list[PredictedRow] = []
    if whole.no_draft is not None:
        bare = _row(whole.no_draft, None, whole)
        rows.append(bare)
    for draft in whole.drafts:
        found = [_row(*one, whole) for one in zip(draft.settings, draft.break_even, strict=True)]
        # Expected, if the server verified by rejection sampling; the draft draws at the target's
        # temperature from all its tokens.
        sampled = [
            PredictedRow(
                f"{draft.name} n_max={one.n_max} by rejection sampling",
                one.acceptance,
                one.acceptance_length,
                decode_speed=one.decode_tokens_per_s,
            )
            for one in draft.sampled
        ]
        rows += [*found, *sampled]
        best.append(found[draft.best])
    others = [_row(one, None, whole) for one in (*whole.rivals, *whole.two_stage)]
    _show_rows([*rows, *others], bare, best, output)
    lines = list(what_ifs(whole))
    if whole.no_draft is not None:
        lines.insert(0, _verdict([*best, *others], bare, f" on {replies}"))
    for line in ("", *lines) if lines else ():
        output.data(line)
    for draft in whole.drafts:
        _show_best(draft.settings[draft.best], whole.no_draft, output)
    _show_slots(whole, output)
    if whole.no_draft is None:
        output.say(
            "no speeds: give the target's file (--target GGUF) to time it here, or its times "
            "(--verify 1:146,2:170,5:220)"
        )


def _row(one: Forecast, even: float | None, whole: TracePrediction) -> PredictedRow:
    found, decode, whole_speed = one.figures, None, None
    if whole.no_draft is not None:
        decode, whole_speed = found.decode_speed, found.end_to_end_speed
    return PredictedRow(
        one.name,
        found.acceptance_rate,
        found.acceptance_length,
        even,
        decode,
        whole_speed if whole.prefill_known else None,
    )


def _show_best(best: Forecast, bare: Forecast | None, output: Output) -> None:
    """The best length of a draft in detail."""
    output.data("")
    output.data(f"{best.name}: accepted by place in the draft")
    depths = [
        (place, f"{accepted}/{drafted}", f"{accepted / drafted:.1%}")
        for place, drafted, accepted in map(astuple, best.by_depth)
        if drafted
    ]
    output.table(depths, right("place", "accepted/drafted", "acceptance"))
    if bare is None:
        return
    output.data("")
    output.data(f"{best.name}: where the time goes")
    spent = {
        "target verifies": best.spent.verify_s,
        "draft writes": best.spent.draft_s,
        "draft follows": best.spent.mirror_s,
        "sampling": best.spent.sample_s,
    }
    shares = [(what, f"{s / best.spent.total_s:.1%}") for what, s in spent.items() if s]
    output.table(shares, ["", *right("share")])
    output.data("")
    output.data(f"{best.name}: by category; the total is token-weighted (harmonic)")
    mine, theirs = (
        {**_by_category(one), "total": one.figures.decode_speed} for one in (best, bare)
    )
    rows = [(what, number(mine[what], ".1f"), number(theirs.get(what), ".1f")) for what in mine]
    output.table(rows, ["category", *right("decode t/s", "no draft's decode t/s")])


def _show_slots(whole: TracePrediction, output: Output) -> None:
    """Each draft at its best length by slots, and of each number of slots whether any pays."""
    if not whole.slots:
        return
    best: dict[tuple[int, str | None], SlotSpeed] = {}
    for one in whole.slots:
        place = one.slots, one.draft
        if place not in best or one.predicted_tokens_per_s > best[place].predicted_tokens_per_s:
            best[place] = one
    rows = [
        (
            slots,
            name or NO_DRAFT,
            one.settings.n_max if one.settings is not None else None,
            number(one.predicted_tokens_per_s, ".2f"),
            number(gain(best.get((slots, None)), one, live=False), ".2f"),
            number(one.predicted_each_tokens_per_s, ".2f"),
        )
        for (slots, name), one in sorted(best.items(), key=lambda item: item[0][0])
    ]
    output.data("")
    output.data("Requests in parallel, as many clients as slots, all slots together")
    columns = right("slots", "draft", "n_max", "t/s", "speedup", "t/s a client sees")
    output.table(rows, [columns[0], Column("draft"), *columns[2:]])
    for line in answers(whole.slots):
        output.data(line)


def what_ifs(whole: TracePrediction) -> Iterator[str]:
    """What else could be done, a line each, and whether it is worth it."""
    bare = whole.no_draft.figures.decode_speed if whole.no_draft is not None else None

    for draft in whole.drafts:
        for chain in dict.fromkeys(one.sampling for one in draft.expected):
            # The best length under another sampling chain, by both rules: the fastest, or without
            # times the one of most tokens a cycle.
            rows = [one for one in draft.expected if one.sampling == chain]
            parts, gains = [], []
            for rule, words in (("engine", ""), ("rejection", "by rejection sampling ")):
                ends = [(one.n_max, getattr(one, rule)) for one in rows]
                n_max, (low, high) = max(
                    ends,
                    key=lambda end: (
                        end[1][0].decode_tokens_per_s or 0.0,
                        end[1][0].acceptance_length or 0.0,
                    ),
                )
                accepted = _span(low.acceptance, high.acceptance)
                parts.append(f"{words}n_max={n_max} {accepted} accepted")
                if bare and low.decode_tokens_per_s is not None:
                    gains.append(low.decode_tokens_per_s / bare)
                    parts[-1] += f" and {gains[-1]:.2f}x as fast as no draft decoding"
            line = f"{draft.name} at {chain.chain}, expected on this text: {'; '.join(parts)}"
            yield f"{NOT_WORTH_IT}: {line}" if gains and max(gains) <= 1 else line
    for draft in whole.drafts:
        if draft.parallel and bare:
            # Drafting while the target verifies, on a device of the draft's own.
            pearl, dsi = (one.decode_tokens_per_s / bare for one in draft.parallel)
            now = (draft.settings[draft.best].figures.decode_speed or 0.0) / bare
            one, many = draft.parallel
            line = (
                f"{draft.name} written during verification (no engine does; a device of its own, "
                f"tokens travel in no time): PEARL n_max={one.n_max} {pearl:.2f}x no draft "
                f"decoding, DSI with {plural(many.servers, 'target server')} {dsi:.2f}x; as it is, "
                f"{now:.2f}x"
            )
            yield line if max(pearl, dsi) > max(now, 1) else f"{NOT_WORTH_IT}: {line}"


def _span(low: float | None, high: float | None) -> str:
    """``62.1%``, or ``62.1 to 63.4%`` where what was not stored matters."""
    if low is None or high is None:
        return "nothing"
    ends = dict.fromkeys(f"{100 * end:.1f}" for end in (low, high))
    return f"{' to '.join(ends)}%"
