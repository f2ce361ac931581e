"""The pick in a few sentences: how much faster, over what, decided or not, and what would decide.

It stands above a table of the same figures and says nothing that a row contradicts: the pick is
the best live row, or the sentence says why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cook.record.measured import Figures
from cook.record.objective import Objective
from cook.record.record import Candidate, Excluded, Pick
from cook.units import plural

DISTURBED_SHARE = 0.1
"""Of the live requests, above which other programs had too much of a part in them."""


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
        where = "on these prompts " if _may_not_pay(winner) else ""
        yield f"Decided {where}({sure}): no other candidate is more than {margin} {better}"
    else:
        yield from _undecided(pick, candidates, better)
    if disturbed > DISTURBED_SHARE:
        yield (
            f"Other programs were at work during {disturbed:.0%} of the live requests: on an idle "
            "machine `--remeasure` is surer"
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


def _may_not_pay(candidate: Candidate) -> bool:
    found = candidate.speedup_interval
    return found is not None and found.low < 1 < found.high
