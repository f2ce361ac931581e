"""The pick, said as an engineer would: how much faster, over what, live or not, how sure, what
to do where that is open.

It stands above a table of the same figures, so it says nothing that a row contradicts: where a
candidate that ran live was faster than the pick, the sentence names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cook.record.measured import Figures
from cook.record.objective import Objective
from cook.record.record import DISTURBED, UNFORESEEN, Candidate, Certainty, Excluded, doubted
from cook.scoring.intervals import FEWEST_PROMPTS
from cook.units import plural

NAMED = 2
"""Rivals that are named at most."""


@dataclass(frozen=True)
class Evidence:
    """What the sentence is about. ``ties``: could not be told from the best; ``confidence`` is
    what was asked for."""

    objective: Objective
    confidence: float
    certainty: Certainty
    ties: tuple[str, ...]
    winner: Candidate
    candidates: Sequence[Candidate]

    @property
    def sure(self) -> str:
        return f"{self.confidence:.0%}"

    @property
    def margin(self) -> str:
        return f"{100 * self.certainty.margin:g}%"


def nothing_qualifies(excluded: Sequence[Excluded]) -> str:
    """Why there is no pick."""
    return f"nothing qualifies: {'; '.join(f'{e.candidate}: {e.reason}' for e in excluded[:4])}"


def pick_sentence(evidence: Evidence) -> str:
    """One or a few short sentences; the first says all that a chat message would."""
    return " ".join(f"{part}." for part in _parts(evidence))


def _parts(evidence: Evidence) -> Iterator[str]:
    yield _gain(evidence)
    objection = evidence.certainty.objection
    cause = doubted(objection)
    if evidence.certainty.decided:
        yield _decided(evidence)
    else:
        yield _undecided(evidence)
        if cause != DISTURBED and (advice := _advice(evidence)) is not None:
            yield advice
    if cause == DISTURBED:
        yield (
            f"Live runs were {objection}: measure again on an idle machine (`--fresh`) before you "
            "trust these speeds"
        )
    elif cause == UNFORESEEN:
        yield (
            f"Live runs were {objection}: what did not run may be as far from its forecast; "
            "`method: live` runs every candidate"
        )
    elif evidence.certainty.decided and objection is not None:
        yield f"The live runs alone do not show it: {objection}"


def _gain(evidence: Evidence) -> str:
    """What the pick is and gains, over what, live or not."""
    winner = evidence.winner
    if winner.live is None:
        return f"{_predicted(evidence)}; it did not run live"
    if winner.ngram is not None and winner.predicted is not None:
        return f"{_predicted(evidence)}{_counted(winner)}"
    over = f"live on {_over(winner.live)}"
    if winner.draft is None:
        speed = _speed(winner.live, evidence.objective)
        return f"{_capital(winner.name)} is best: {speed}, {over}{_best_draft(evidence)}"
    rate = ""
    if winner.live.acceptance_rate is not None:
        rate = f", acceptance {winner.live.acceptance_rate:.1%}"
    match evidence.objective:
        case Objective.END_TO_END_SPEED if winner.speedup is None:
            speed = _speed(winner.live, evidence.objective)
            unknown = "no live run without a draft to compare it with"
            return f"{winner.name} runs at {speed}, {over}{rate}; {unknown}"
        case Objective.END_TO_END_SPEED:
            gain = f"is {_faster(winner)} as no draft end to end{_interval(winner)}"
            return f"{winner.name} {gain}, {over}{rate}"
        case Objective.DECODE_SPEED:
            whole = f", {winner.speedup:.2f}x end to end" if winner.speedup is not None else ""
            decode = winner.decode_speedup
            told = f"decodes {decode:.2f}x as fast as no draft" if decode else "decodes fastest"
            return f"{winner.name} {told}{whole}{_interval(winner)}, {over}{rate}"
        case Objective.ACCEPTANCE | Objective.ACCEPTANCE_LENGTH:
            value = evidence.objective.of(winner.live)
            assert value is not None, "what was picked by it has it"
            what = (
                f"has {value:.1%} of its drafted tokens accepted"
                if evidence.objective is Objective.ACCEPTANCE
                else f"comes to {value:.2f} tokens a cycle"
            )
            if winner.speedup is None:
                return f"{winner.name} {what}, {over}"
            pays = f"it is {_faster(winner)} as no draft end to end{_interval(winner)}"
            return f"{winner.name} {what}, {over}; {pays}"


def _counted(winner: Candidate) -> str:
    """What live runs say of draft-free speculation: its counts, as its speeds hang on chance."""
    if winner.counts is None:
        return ""
    same = f"{winner.counts.exact} of {plural(winner.counts.requests, 'live request')}"
    return f"; it drafted and had accepted as simulated in {same}"


def _over(figures: Figures) -> str:
    return f"{plural(figures.requests, 'prompt')}, {figures.tokens:,} tokens"


def _speed(figures: Figures, objective: Objective) -> str:
    if objective is Objective.DECODE_SPEED and figures.decode_speed is not None:
        return f"{figures.decode_speed:.2f} t/s decode"
    if figures.end_to_end_speed is None:
        return "no speed"
    return f"{figures.end_to_end_speed:.2f} t/s end to end"


def _faster(candidate: Candidate) -> str:
    assert candidate.speedup is not None, "asked only where no draft ran, too"
    return f"{candidate.speedup:.2f}x as fast"


def _interval(candidate: Candidate) -> str:
    """Of the end-to-end speedup; with the warning that it may be none."""
    found = candidate.speedup_interval
    if found is None:
        return ""
    text = f"{found.confidence:.0%}: {found.low:.2f} to {found.high:.2f}"
    if found.high < 1:
        return f" ({text}, so it slows down)"
    return f" ({text}{', so it may also be slower' if found.low < 1 else ''})"


def _best_draft(evidence: Evidence) -> str:
    """What the best draft would have made of it, where none was picked."""
    drafts = [c for c in evidence.candidates if c.draft and c.speedup is not None]
    best = max(drafts, key=lambda c: c.speedup or 0.0, default=None)
    if best is None:
        return ""
    return f"; the fastest draft, {best.name}, is {_faster(best)} end to end{_interval(best)}"


def _predicted(evidence: Evidence) -> str:
    winner = evidence.winner
    found = winner.predicted.figures if winner.predicted else None
    bare = next(
        (c for c in evidence.candidates if c.draft is None and c.engine == winner.engine), None
    )
    mine = found.end_to_end_speed if found else None
    other = bare.predicted.figures.end_to_end_speed if bare and bare.predicted else None
    if found is None or mine is None:
        return f"{winner.name} is expected to be best"
    if winner.draft is None or not other:
        speed = f"{mine:.2f} t/s end to end, predicted on {_over(found)}"
        return f"{winner.name} is expected to be best, {speed}"
    return (
        f"{winner.name} is predicted to be {mine / other:.2f}x as fast as no draft end to end, on "
        f"{_over(found)}"
    )


def _decided(evidence: Evidence) -> str:
    found = evidence.certainty
    name = evidence.winner.name
    equal = [n for n in found.equal if n != name]
    if found.leader != name:
        why = "is the smaller file" if evidence.winner.key.is_file else "needs no file"
        return (
            f"It ties with {found.leader}, the best expected, within {evidence.margin} "
            f"({evidence.sure}), and {why}"
        )
    if equal:
        return f"It ties with {_named(equal)} within {evidence.margin} ({evidence.sure})"
    return f"No other candidate is more than {evidence.margin} better ({evidence.sure})"


def _undecided(evidence: Evidence) -> str:
    """What stands against it."""
    found = evidence.certainty
    if found.within is None:
        return "Which candidate is best is undecided"
    rivals = _named(evidence.ties) if evidence.ties else "another candidate"
    gain = "as good"
    if found.gain is not None and found.gain >= 0.005:
        gain = f"up to {found.gain:.0%} better" if found.gain < 1 else "more than twice as good"
    return (
        f"Which candidate is best is undecided: it is expected to be best{_outrun(evidence)}, but "
        f"{rivals} may be {gain} ({evidence.sure}; margin {evidence.margin})"
    )


def _advice(evidence: Evidence) -> str | None:
    """What would decide; None where nothing is known to."""
    found = evidence.certainty
    if found.within is None:
        ran = evidence.winner.live
        if ran is not None and ran.requests < FEWEST_PROMPTS:
            return f"Give it more prompts: {FEWEST_PROMPTS} are the fewest to say how sure it is"
        return "More live rounds would tell how sure it is: raise score.live_budget"
    if found.rounds_to_decide is not None and found.seconds_to_decide is not None:
        minutes = max(1, round(found.seconds_to_decide / 60))
        return (
            f"About {plural(found.rounds_to_decide, 'more live round')} would decide: raise "
            f"score.live_budget by {plural(minutes, 'minute')}"
        )
    return "More prompts would decide (score.limit), or a wider pick.margin"


def _outrun(evidence: Evidence) -> str:
    """The candidate that was better than the pick in its live runs, if any: all that was measured
    says otherwise."""
    mine = _live_value(evidence.winner, evidence.objective)
    if mine is None:
        return ""
    faster = [
        (value, c.name)
        for c in evidence.candidates
        if c.key != evidence.winner.key
        and c.name in {*evidence.ties, *evidence.certainty.chances}
        and (value := _live_value(c, evidence.objective)) is not None
        and value > mine
    ]
    return f" by all that was measured, though {max(faster)[1]} did better live" if faster else ""


def _live_value(candidate: Candidate, objective: Objective) -> float | None:
    if candidate.live is None:
        return None
    if objective is Objective.END_TO_END_SPEED and candidate.speedup is not None:
        return candidate.speedup
    if objective is Objective.DECODE_SPEED and candidate.decode_speedup is not None:
        return candidate.decode_speedup
    return objective.of(candidate.live)


def _named(names: Sequence[str]) -> str:
    head = list(names[:NAMED])
    more = len(names) - len(head)
    if more:
        return f"{', '.join(head)} and {more} more"
    return " and ".join(head)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
