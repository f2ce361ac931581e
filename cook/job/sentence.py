"""The pick and its sentence: how much faster, over what, decided or not, and what would decide.

The sentence stands above a table of the candidates' figures and contradicts no row of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from cook.job.decide import Decision
from cook.job.layout import Configuration
from cook.record.record import (
    Candidate,
    CandidateKey,
    Excluded,
    Figures,
    Objective,
    Pick,
    Prediction,
    PromptRun,
)
from cook.scoring.compare import by_category, by_prompt, figures, interval, log_ratio, paired
from cook.units import plural

DISTURBED_SHARE = 0.1
"""Of the live requests, above which other programs had too much of a part in them."""
AGAIN = "`cook build --remeasure` or `cook score --fresh`"
DECODE, WHOLE = Objective.DECODE_SPEED, Objective.END_TO_END_SPEED


def candidates_and_pick(
    decision: Decision, configurations: Sequence[Configuration]
) -> tuple[tuple[Candidate, ...], Pick]:
    """The candidates with their figures, and the pick with its certainty, in names."""
    candidates = tuple(_scored(decision, configuration) for configuration in configurations)
    pick = Pick(
        candidate=None,
        sentence=nothing_qualifies(decision.excluded),
        maximize=decision.objective.value,
        confidence=decision.confidence,
        margin=decision.margin,
        value=None,
        ranking=(),
        excluded=tuple(decision.excluded),
    )
    found, names = decision.standings, {c.key: c.name for c in candidates}
    winner = next((c for c in candidates if c.key == decision.pick), None)
    if winner is None or found is None:
        return candidates, pick
    shown, objective = winner.live, decision.objective
    if not objective.timed and winner.predicted is not None:
        shown = winner.predicted.figures  # of a count that of all replayed prompts
    pick = replace(
        pick,
        candidate=winner.name,
        value=objective.of(shown) if shown is not None else None,
        ranking=tuple(names[key] for key in decision.ranking),
        decided=decision.decided,
        leader=names[found.leader],
        seconds_to_decide=decision.seconds_to_decide,
        within={names[key]: chance for key, chance in found.within.items()},
        looks=decision.looks,
        start_sd=found.start_sd if objective.timed else None,
    )
    if found.rival is not None:
        low, high = math.exp(found.low), math.exp(found.high)
        pick = replace(pick, rival=names[found.rival], rival_low=low, rival_high=high)
    live = [run for row in decision.rows.values() for run in row.live]
    disturbed = sum(run.disturbed for run in live) / max(len(live), 1)
    sentence = pick_sentence(pick, winner, candidates, disturbed)
    return candidates, replace(pick, sentence=sentence)


def _scored(decision: Decision, configuration: Configuration) -> Candidate:
    """The candidate with its figures, live and forecast, and nothing that is checked of it."""
    key, base, weights = configuration.key, decision.base, decision.score.weights
    row = decision.rows.get(key)
    runs = row.live if row is not None else ()
    whole = decode = between = None
    if row is not None and base is not None:
        whole, decode = (paired(row, base, one, weights) for one in (WHOLE, DECODE))
        if key != base.key:
            between = interval(runs, base.live, WHOLE, weights, decision.confidence, about=whole)
    return Candidate(
        name=configuration.name,
        engine=key.engine,
        draft=key.draft,
        settings=key.settings,
        cache_type=key.cache_type,
        live=figures(runs, weights) if runs else None,
        reason=None,
        categories=by_category(runs),
        speedup=_exp(whole),
        speedup_interval=between,
        decode_speedup=_exp(decode),
        output=None,
        server_peak_rss_bytes=None,
        command=(),
        predicted=_predicted(decision, key, runs),
        prompts=by_prompt(runs, live=True) if runs else None,
        ngram=key.ngram,
    )


def _predicted(
    decision: Decision, key: CandidateKey, live: Sequence[PromptRun]
) -> Prediction | None:
    """The forecast of a candidate, and how far off its live requests show it to be."""
    forecast, bare = (decision.forecasts.get(k) for k in (key, CandidateKey(key.engine)))
    if forecast is None or bare is None:
        return None
    weights, by_id = decision.score.weights, {run.id: run for run in forecast.runs}
    seen = [run for run in live if run.id in by_id]
    guess = [by_id[run.id] for run in seen]
    speedups = [_exp(log_ratio(forecast.runs, bare.runs, o, weights)) for o in (WHOLE, DECODE)]
    logs = (log_ratio(guess, seen, objective, weights) for objective in (WHOLE, DECODE))
    off_by = [math.expm1(log) if log is not None else None for log in logs]
    return Prediction(
        figures=figures(forecast.runs, weights),
        **asdict(forecast.spent),
        speedup=speedups[0],
        decode_speedup=speedups[1],
        on_live=figures(guess, weights) if guess else None,
        off_by=off_by[0],
        decode_off_by=off_by[1],
        by_depth=forecast.by_depth,
        categories=by_category(forecast.runs),
        prompts=by_prompt(forecast.runs),
    )


def _exp(log: float | None) -> float | None:
    return math.exp(log) if log is not None else None


def nothing_qualifies(excluded: Sequence[Excluded]) -> str:
    """Why there is no pick."""
    return f"nothing qualifies: {'; '.join(f'{e.candidate}: {e.reason}' for e in excluded[:4])}"


def pick_sentence(
    pick: Pick, winner: Candidate, candidates: Sequence[Candidate], disturbed: float
) -> str:
    """One or a few short sentences; the first says all that a chat message would.

    ``disturbed``: share of the live requests during which another program was at work.
    """
    return " ".join(f"{part}." for part in _parts(pick, winner, candidates, disturbed))


def _parts(
    pick: Pick, winner: Candidate, candidates: Sequence[Candidate], disturbed: float
) -> Iterator[str]:
    objective = Objective(pick.maximize)
    yield _gain(winner, objective) + _best_draft(winner, candidates)
    sure = f"{pick.confidence:.0%}"
    margin = f"{100 * pick.margin:g} %"
    better = "better" if not objective.timed else "faster"
    if pick.decided and pick.leader != pick.candidate:
        why = "is the smaller file" if winner.key.is_file else "needs no file"
        yield f"Decided: it is within {margin} of {pick.leader}, the best ({sure}), and {why}"
    elif pick.decided:
        found = winner.speedup_interval
        where = "on these prompts " if found is not None and found.low < 1 < found.high else ""
        yield f"Decided {where}({sure}): no other candidate is more than {margin} {better}"
    else:
        yield from _undecided(pick, candidates, better)
    if disturbed > DISTURBED_SHARE:
        yield (
            f"Other programs were at work during {disturbed:.0%} of the live requests: on an idle "
            f"machine {AGAIN} is surer"
        )


def _gain(winner: Candidate, objective: Objective) -> str:
    """What the pick brings, from its live requests where it ran, or else as forecast."""
    found, how = winner.live, ""
    if winner.predicted is not None and (found is None or not objective.timed):
        found = winner.predicted.figures
        how = ", replayed" if winner.live is not None else ", by forecast alone"
    if found is None:
        return f"{winner.name} is the only candidate"
    over = f"{plural(found.requests, 'request')}, {found.tokens:,} tokens{how}"
    rate = f", acceptance {found.acceptance_rate:.1%}" if found.acceptance_rate is not None else ""
    speedup, decode = winner.speedup, winner.decode_speedup
    if winner.live is None and winner.predicted is not None:
        speedup, decode = winner.predicted.speedup, winner.predicted.decode_speedup
    if winner.draft is None:
        return f"No draft is the fastest, at {_speed(found, objective)}, over {over}"
    value = objective.of(found)
    if objective is Objective.ACCEPTANCE and value is not None:
        gain = f"has {value:.1%} of its drafted tokens accepted"
        rate = ""
    elif objective is Objective.ACCEPTANCE_LENGTH and value is not None:
        gain = f"comes to {value:.2f} tokens a cycle"
    elif objective is Objective.DECODE_SPEED and decode is not None:
        gain = f"decodes {decode:.2f}x as fast as no draft"
    elif speedup is not None:
        gain = f"is {speedup:.2f}x as fast as no draft end to end"
        return f"{winner.name} {gain}{_interval(winner)}, over {over}{rate}"
    else:
        return f"{winner.name} runs at {_speed(found, objective)}, over {over}{rate}"
    whole = f", {speedup:.2f}x end to end{_interval(winner)}" if speedup is not None else ""
    return f"{winner.name} {gain}{whole}, over {over}{rate}"


def _undecided(pick: Pick, candidates: Sequence[Candidate], better: str) -> Iterator[str]:
    """The pair that is open, how it compares, and what deciding takes."""
    if pick.rival is None or pick.rival_low is None or pick.rival_high is None:
        yield "Which candidate is best is undecided: too little was measured"
        return
    ran = any(c.name == pick.rival and c.live is not None for c in candidates)
    how = "" if ran else " by its forecast, as it did not run,"
    low, high = pick.rival_low - 1, pick.rival_high - 1
    yield (
        f"Undecided: {pick.rival} is{how} {low:+.1%} to {high:+.1%} {better} than {pick.leader} "
        f"({pick.confidence:.0%})"
    )
    if pick.seconds_to_decide is not None:
        minutes = max(1, round(pick.seconds_to_decide / 60))
        yield (
            f"About {plural(minutes, 'more minute')} of live runs would decide: raise "
            "score.live_budget"
        )
    else:
        yield "More prompts would decide (score.limit), or a wider pick.margin"


def _best_draft(winner: Candidate, candidates: Sequence[Candidate]) -> str:
    """The best draft, where none was picked."""
    drafts = [c for c in candidates if c.key.is_file and c.live and c.speedup is not None]
    if winner.key.is_file or not drafts:
        return ""
    best = max(drafts, key=lambda c: c.speedup or 0.0)
    return f"; the fastest draft, {best.name}, is {best.speedup:.2f}x as fast as no draft"


def _speed(figures: Figures, objective: Objective) -> str:
    decode = objective is Objective.DECODE_SPEED
    speed = figures.decode_speed if decode else figures.end_to_end_speed
    return f"{speed:.2f} t/s {'decode' if decode else 'end to end'}" if speed else "no speed"


def _interval(candidate: Candidate) -> str:
    """Of the end-to-end speedup on other prompts of the kind."""
    found = candidate.speedup_interval
    return f" ({found.low:.2f} to {found.high:.2f} on other such prompts)" if found else ""
