"""What the checks of a live run came to, as steps find it and a record keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """The first token where a drafted reply left the baseline's.

    ``position`` counts generated tokens from 0, of the baseline's ``reply_tokens``. ``gap`` is
    logit(baseline's token) minus logit(other token); where tokens are drawn, how far logits have to
    part for one draw to give either. None when the other token was not among the asked candidates,
    and then ``gap_at_least`` bounds it from below; or where nothing was looked up.
    ``without_draft``: the target alone, reading the baseline's text in batches as wide as a
    verification, prefers (or draws) the other token too, so that the draft is innocent; None where
    that was not tried.
    """

    prompt_id: str
    position: int
    reply_tokens: int
    baseline_token: int | None
    other_token: int | None
    gap: float | None
    gap_at_least: float | None
    without_draft: bool | None = None


@dataclass(frozen=True)
class CompareOutcome:
    """``identical`` of ``replies`` replies are token for token the baseline's.

    ``not_controlled``: why no control of batch width came to an end; None where it did, or none
    was needed.
    """

    replies: int
    identical: int
    differences: tuple[Difference, ...]
    not_controlled: str | None = None


@dataclass(frozen=True)
class ControlOutcome:
    """``flips`` of ``positions`` tokens are another in batches of ``width`` than singly.

    ``p50``, ``p99`` and ``largest``: absolute difference of the emitted token's log-probability,
    nats. ``largest_flip``: the widest margin, between the two likeliest, at which a token flipped.
    """

    width: int
    positions: int
    flips: int
    p50: float
    p99: float
    largest: float
    largest_flip: float | None

    @property
    def near_tie_gap(self) -> float:
        """Logit gap up to which a difference is a near tie."""
        return 2 * self.p99


@dataclass(frozen=True)
class RecountOutcome:
    """``exact`` of ``requests`` have our counts equal to the server's, at its own batch shapes.

    The totals are the server's and those of one-pass replay, as every score is made. Counts are
    called exact only where every request agreed. ``passed_over``: live requests not recounted,
    because their tokens are not known for certain (ik tells only text).
    """

    requests: int
    exact: int
    live_drafted: int
    live_accepted: int
    replay_drafted: int
    replay_accepted: int
    passed_over: int = 0

    @property
    def passed(self) -> bool:
        """Every request equal, and something was drafted."""
        return self.exact == self.requests > 0 and self.live_drafted > 0
