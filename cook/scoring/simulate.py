"""What a server would have drafted and accepted, computed from a replay's arrays.

Greedy and sampled replies alike: both engines draw the target's token first and only compare
(common_sampler_sample_and_accept_n, common/sampling.cpp), so given the emitted tokens the run
is a deterministic function of the draft's argmax and confidence at each position
(docs/internals/scoring.md#replay). Only what follows the draft's first wrong token needs rollouts,
and only when p_min > 0.

A :class:`Profile` is the drafting loop of one engine as it was at a date: read in the sources and
verified against live servers; docs/internals/scoring.md#profiles has them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.arrays import Ints
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from cook.engines.worker.messages import Replay


class Profile(StrEnum):
    """An engine's drafting loop; the worker knows those of servers by the same names."""

    MAINLINE_2026_10 = "mainline-2026-10"
    MAINLINE_2025 = "mainline-2025"
    IK_2026_08 = "ik-2026-08"
    IK_2026_08_MTP = "ik-2026-08-mtp"


PROFILES = {
    Flavour.LLAMA_CPP: Profile.MAINLINE_2026_10,
    Flavour.IK_LLAMA_CPP: Profile.IK_2026_08,
}
"""Whose accounting a build of each flavour is taken to have; a live run is the test of it."""
HEAD_PROFILES = {**PROFILES, Flavour.IK_LLAMA_CPP: Profile.IK_2026_08_MTP}
"""The same of its heads."""


@dataclass(frozen=True)
class LoopRules:
    """How one loop drafts and counts.

    ``uses_p_min``: ik computes its confidence without normalising, so its p_min never fires.
    ``keeps_low_token``: the token below p_min is drafted all the same (before llama.cpp #22506).
    ``breaks_at_eog``: a matched end-of-generation token that is not the draft's last is not
    counted, nor is anything after it. ``reads_late``: the draft reads the prompt when it first
    drafts, after the target's first token, and the engine times that as decoding; else it reads
    with the target, before the first token. ``mirrors``: the draft re-evaluates the verify batch
    and keeps no cache of its own (TAG_SPEC_AVOID_DRAFT_REEVAL); the others keep the cache, so a
    discarded draft that came true is offered again, shorter. ``skips_short_room``: no drafting
    when fewer than n_min tokens fit. ``drafts_full``: drafts n_max whatever fits, then truncates.
    ``reads_accepted``: the head reads what a verification gave behind it, in a batch whose last
    token gives the next draft its first; that one is kept whatever its confidence.
    """

    uses_p_min: bool = False
    keeps_low_token: bool = False
    breaks_at_eog: bool = False
    mirrors: bool = False
    skips_short_room: bool = False
    drafts_full: bool = False
    reads_late: bool = False
    reads_accepted: bool = False


RULES: dict[Profile, LoopRules] = {
    Profile.MAINLINE_2026_10: LoopRules(uses_p_min=True, breaks_at_eog=True, mirrors=True),
    Profile.MAINLINE_2025: LoopRules(
        uses_p_min=True, keeps_low_token=True, skips_short_room=True, reads_late=True
    ),
    Profile.IK_2026_08: LoopRules(skips_short_room=True, drafts_full=True, reads_late=True),
    Profile.IK_2026_08_MTP: LoopRules(
        uses_p_min=True, skips_short_room=True, drafts_full=True, reads_accepted=True
    ),
}


@dataclass(frozen=True, eq=False)
class Positions:
    """One reply as the draft sees it.

    Arrays have one entry per emitted token, tokens recorded beyond the reply's end included.
    ``reply``: length of the reply (its end-of-generation token counts). ``match``: the draft's
    argmax is the emitted token; ``confidence`` of that argmax; ``eog``: the emitted token ends
    generation. ``rollout`` maps a mismatch position to the confidences that follow the draft's
    own token there; ``tail`` are those after the last recorded token, when the draft was right
    to the end. ``rollout_floor``: rollouts stop below this confidence. ``prompt`` tokens,
    ``n_predict`` the request's limit and ``context`` the slot's bound how far a draft may go.
    ``chains``: of a head, whose drafts are no part of one another, the draft that begins at each
    position: [n] tokens right in a row, [n, depth] confidences of all.
    """

    prompt: int
    reply: int
    match: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32] | None = None
    eog: npt.NDArray[np.bool_] | None = None
    rollout: dict[int, npt.NDArray[np.float32]] | None = None
    tail: npt.NDArray[np.float32] | None = None
    rollout_floor: float = 0.0
    n_predict: int | None = None
    context: int | None = None
    chains: tuple[Ints, npt.NDArray[np.float32]] | None = None

    def __post_init__(self) -> None:
        arrays = [a for a in (self.match, self.confidence, self.eog) if a is not None]
        if any(len(a) != len(self.match) for a in arrays) or not 0 < self.reply <= len(self.match):
            raise InputError(f"a reply of {self.reply} tokens with arrays of other lengths")

    @cached_property
    def run(self) -> list[int]:
        """For each position, how many matches follow in a row from it."""
        if self.chains is not None:
            return [int(right) for right in self.chains[0]]
        out, count = [0] * len(self.match), 0
        flags = self.match.tolist()
        for i in range(len(flags) - 1, -1, -1):
            count = count + 1 if flags[i] else 0
            out[i] = count
        return out

    @cached_property
    def next_eog(self) -> list[int]:
        """For each position, the first end-of-generation token at or after it (or beyond all)."""
        return _next_true(np.zeros(len(self.match), bool) if self.eog is None else self.eog)

    def low(self, p_min: float) -> list[int]:
        """For each position, the first one at or after it whose confidence is below ``p_min``."""
        if self.confidence is None:
            raise InputError("p_min > 0 needs the draft's confidences")
        return _next_true(self.confidence < np.float32(p_min))


def _next_true(flags: npt.NDArray[np.bool_]) -> list[int]:
    """For each place, and the one behind all, the first true one at or after it, or else that."""
    at = len(flags)
    out = [at] * (at + 1)
    for i, flag in reversed([*enumerate(flags.tolist())]):
        at = i if flag else at
        out[i] = at
    return out


@dataclass(frozen=True, eq=False)
class Simulation:
    """A run, one entry per step of the target after the first token.

    ``start`` [s]: index into the reply of the first token of the step; ``length``: tokens
    drafted and verified (0: a plain step); ``accepted``: of these, accepted. What the draft
    spent: ``decodes`` single decodes and ``catch_up`` tokens evaluated in a batch (engines that
    keep the draft's cache): before them, but by a head behind the verification. The engines count
    as cycles only steps with a draft.
    """

    start: Ints
    length: Ints
    accepted: Ints
    decodes: Ints
    catch_up: Ints

    @property
    def draft_n(self) -> int:
        return int(self.length.sum())

    @property
    def draft_n_accepted(self) -> int:
        return int(self.accepted.sum())

    @property
    def steps(self) -> int:
        return len(self.length)

    @property
    def cycles(self) -> int:
        return int((self.length > 0).sum())

    def by_depth(self, n_max: int) -> tuple[Ints, Ints]:
        """(drafted, accepted) at each depth 1..n_max, over all cycles."""
        depth = np.arange(n_max)[:, None]
        return (self.length > depth).sum(axis=1), (self.accepted > depth).sum(axis=1)


def plain_steps(reply: int) -> Simulation:
    """A reply of ``reply`` tokens without drafting: a step for each after the first."""
    none = np.zeros(reply - 1, dtype=np.int64)
    return Simulation(np.arange(1, reply), none, none, none, none)


def positions_of(
    replay: Replay,
    emitted: npt.NDArray[np.int32],
    *,
    prompt: int,
    reply: int,
    eog: frozenset[int],
    rollout_floor: float = 0.0,
    n_predict: int | None = None,
    context: int | None = None,
) -> Positions:
    """The simulator's view of one replayed reply; ``rollout_floor`` as given to the replay."""
    rolled = replay.rollouts
    table = None
    if rolled is not None:
        rows = zip(rolled.position.tolist(), rolled.length.tolist(), rolled.confidence, strict=True)
        table = {position: row[:length] for position, length, row in rows}
    return Positions(
        prompt=prompt,
        reply=reply,
        match=replay.argmax == emitted,
        confidence=replay.confidence,
        eog=np.isin(emitted, list(eog)),
        rollout=table,
        tail=None if rolled is None else rolled.tail_confidence,
        rollout_floor=rollout_floor,
        n_predict=n_predict,
        context=context,
    )


class FirstStage(Protocol):
    """A method that drafts before the draft model does, over one reply.

    ``n_max``, ``n_min``: the numbers by which an engine that bounds every method bounds it.
    """

    @property
    def n_max(self) -> int: ...
    @property
    def n_min(self) -> int: ...

    def draft(self, i: int, room: int) -> tuple[int, int]:
        """(tokens drafted for position ``i``, at most ``room``; of these right in a row)."""
        ...

    def accept(self, count: int) -> None:
        """``count`` tokens of its last draft, which had some, were accepted."""
        ...


NO_MODEL = DraftSettings(0)
"""Of a first stage that nothing follows."""


def simulate(
    positions: Positions,
    setting: DraftSettings,
    profile: Profile,
    first: FirstStage | None = None,
) -> Simulation:
    """Run the drafting loop of ``profile`` over one reply (docs/internals/scoring.md#the-loop).

    ``first`` drafts before the model, which drafts only where that has nothing: one draft a step,
    as in ``common_speculative_draft`` of both engines.
    """
    return _Loop(positions, RULES[profile], setting, first).run()


class _Loop:
    def __init__(
        self,
        positions: Positions,
        rules: LoopRules,
        setting: DraftSettings,
        first: FirstStage | None,
    ) -> None:
        self.p, self.rules, self.setting, self.first = positions, rules, setting, first
        self.runs = positions.run
        self.p_min = setting.p_min if rules.uses_p_min else 0.0
        head = positions.chains is not None
        self.low = positions.low(self.p_min) if self.p_min > 0 and not head else None
        if head:  # n_max tokens are drafted, and paid for, whatever fits
            self.rules = replace(rules, drafts_full=True)
        if self.p_min > 0 and positions.rollout_floor > self.p_min:
            raise InputError(
                f"rollouts were stopped below {positions.rollout_floor}: p_min {self.p_min} "
                "is out of their reach",
                hint="replay again with a lower rollout floor",
            )
        self._beyond: dict[int, tuple[int, bool]] = {}

    def run(self) -> Simulation:
        p, rules, setting = self.p, self.rules, self.setting
        runs, next_eog, n = self.runs, p.next_eog, p.reply
        n_max, n_min = setting.n_max, 0 if rules.mirrors and p.chains else setting.n_min
        far = 1 << 60
        most, least = n_max, n_min
        if self.first is not None:
            most = far
            if rules.skips_short_room:  # the widest and the least of all stages bound every one
                stages = [(self.first.n_max, self.first.n_min)]
                stages += [(n_max, n_min)] if n_max else []
                most = max(longest for longest, _ in stages)
                least = min(min(shortest, longest) for longest, shortest in stages)
        limit = far if p.n_predict is None else p.n_predict
        context = far if p.context is None else p.context - p.prompt
        starts, lengths, accepts, decodes, catch_ups = [], [], [], [], []
        kept_from, kept_to = 0, 0  # kept caches: the draft's last tokens stand for these positions
        i = 1
        while i < n:
            room = min(most, limit - i - 1, context - i - 1)
            length = paid = late = right = 0
            drafts = room > 0 and not (rules.skips_short_room and room < least)
            if drafts and self.first is not None:
                length, right = self.first.draft(i, room)
            by_first = length > 0
            room = min(room, n_max)
            if drafts and not by_first and room > 0:
                reused = (
                    not rules.mirrors
                    and kept_from < i <= kept_to
                    and runs[kept_from] >= i - kept_from
                )
                if reused:  # a discarded draft that came true is handed out again
                    length = min(kept_to - i, room)
                else:
                    length, paid = self._draft(i, n_max if rules.drafts_full else room)
                    if rules.reads_accepted:
                        paid -= i > 1  # the first came with what was read last
                    elif not rules.mirrors:
                        late = i - 1 - min(i - 1, kept_to, kept_from + runs[kept_from])
                        kept_from, kept_to = i, i + paid - 1
                    length = min(length, room)
                if length < (least if rules.skips_short_room else n_min):
                    length = 0
            j = right if by_first else min(runs[i], length)
            if rules.breaks_at_eog and next_eog[i] < i + min(j, length - 1):
                j = next_eog[i] - i
            if rules.reads_accepted and drafts:
                late = j + 1
            if by_first and self.first is not None:
                self.first.accept(j)
            starts.append(i)
            lengths.append(length)
            accepts.append(j)
            decodes.append(paid)
            catch_ups.append(late)
            i += j + 1
        columns = (starts, lengths, accepts, decodes, catch_ups)
        return Simulation(*(np.array(c, dtype=np.int64) for c in columns))

    def _draft(self, i: int, most: int) -> tuple[int, int]:
        """(tokens drafted, single decodes spent) by a draft starting at position ``i``."""
        if self.p.chains is not None:
            confidence = self.p.chains[1][i]
            if most > len(confidence):
                raise InputError(f"drafts of {most} tokens, and replayed were {len(confidence)}")
            got = next((k for k in range(most) if confidence[k] < np.float32(self.p_min)), most)
            kept = max(got, int(self.rules.reads_accepted))
            return kept if kept >= self.setting.n_min else 0, min(got + 1, most)  # before it is cut
        if self.low is None:
            return most, most
        stop = self.low[i]
        wrong = i + self.runs[i]  # first position where the draft errs, or the end of the text
        open_end = False
        if stop > wrong or stop == len(self.runs):
            count, open_end = self._after(wrong)
            stop = wrong + count
        got = stop - i
        if got >= most:
            return most, most
        if open_end:
            raise InputError(
                f"rollouts are too short for n_max {self.setting.n_max}",
                hint="replay with at least n_max rollout steps",
            )
        return (got + 1 if self.rules.keeps_low_token else got), got + 1

    def _after(self, wrong: int) -> tuple[int, bool]:
        """Tokens the draft goes on from ``wrong`` above p_min; True: at least so many."""
        if wrong in self._beyond:
            return self._beyond[wrong]
        ended = wrong == len(self.runs)
        table = self.p.tail if ended else (self.p.rollout or {}).get(wrong)
        if table is None:
            raise InputError(
                "p_min > 0 needs rollouts after the draft's mismatches",
                hint="replay with rollouts",
            )
        own = 0 if ended else 1  # at a mismatch the draft's own token comes first
        below = np.nonzero(table < np.float32(self.p_min))[0]
        count = own + (int(below[0]) if len(below) else len(table))
        self._beyond[wrong] = found = (count, len(below) == 0)
        return found
