"""The simulator against a literal emulation of the servers' loops, and its own invariants."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.scoring.simulate import Positions, Profile, Simulation, simulate

EOG = 0
VOCABULARY = 7
Say = Callable[[tuple[int, ...]], tuple[int, float]]


@dataclass
class Counts:
    draft_n: int = 0
    accepted: int = 0
    decodes: int = 0
    late: int = 0
    cycles: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A text with what follows its end, and a draft: a function of the whole prefix."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    skill: float
    seed: int

    def say(self, prefix: tuple[int, ...]) -> tuple[int, float]:
        digest = hashlib.blake2b(repr((self.seed, prefix)).encode(), digest_size=8).digest()
        rng = random.Random(digest)
        confidence = float(np.float32(rng.random() ** 0.5))
        whole = self.prompt + self.text
        on_text = whole[: len(prefix)] == prefix and len(prefix) < len(whole)
        if on_text and rng.random() < self.skill:
            return whole[len(prefix)], confidence
        return rng.randrange(VOCABULARY), confidence


def reply_length(text: tuple[int, ...], n_predict: int) -> int:
    end = text.index(EOG) + 1 if EOG in text else len(text)
    return min(end, n_predict)


def verify(case: Case, i: int, draft: list[int], *, eog_break: bool) -> int:
    """Accepted tokens of ``draft`` at position ``i``: common_sampler_sample_and_accept_n."""
    result = 0
    for k, token in enumerate(draft):
        if i + k >= len(case.text):
            break
        said = case.text[i + k]
        if token != said or (eog_break and said == EOG and k + 1 < len(draft)):
            break
        result += 1
    return result


Draft = Callable[[int, int, Counts], list[int]]
"""What is drafted behind the ``i``-th token, with room for so many; counts its decodes."""


def serve(
    case: Case, n_predict: int, context: int, draft: Draft, *, eog_break: bool = False
) -> Counts:
    """A server's loop: draft, verify, go on behind what was accepted."""
    counts, i = Counts(), 1
    while i < reply_length(case.text, n_predict):
        room = min(context - len(case.prompt) - i - 1, n_predict - i - 1)
        drafted = draft(i, room, counts)
        accepted = verify(case, i, drafted, eog_break=eog_break)
        counts.draft_n += len(drafted)
        counts.accepted += accepted
        if drafted:
            counts.cycles.append((len(drafted), accepted))
        i += accepted + 1
    return counts


def mainline_2026(case: Case, s: DraftSettings, n_predict: int, context: int) -> Counts:
    """common/speculative.cpp draft_simple and the slot loop of server-context.cpp, 0c1e570."""

    def draft(i: int, room: int, counts: Counts) -> list[int]:
        found: list[int] = []
        prefix = (*case.prompt, *case.text[:i])
        while len(found) < min(s.n_max, room):
            counts.decodes += 1
            token, confidence = case.say(prefix)
            if confidence < s.p_min:
                break
            found.append(token)
            prefix = (*prefix, token)
        return found if len(found) >= s.n_min else []

    return serve(case, n_predict, context, draft, eog_break=True)


def kept_cache(case: Case, s: DraftSettings, n_predict: int, context: int, *, ik: bool) -> Counts:
    """ik's common_speculative_state_draft (and its ancestor of 2025) with its prompt cache."""
    cache: list[int] = []

    def draft(i: int, room: int, counts: Counts) -> list[int]:
        nonlocal cache
        past, sampled = [*case.prompt, *case.text[: i - 1]], case.text[i - 1]
        limit = min(s.n_max, room)
        if limit <= 0 or limit < s.n_min:
            return []
        found: list[int] = []
        most = s.n_max if ik else limit
        same = 0
        while same < min(len(past), len(cache)) and past[same] == cache[same]:
            same += 1
        if same and same < len(cache) and same == len(past) and cache[same] == sampled:
            found = cache[same + 1 :][:most]
        else:
            counts.late += max(0, len(past) - max(same, len(case.prompt)))
            cache = [*past, sampled]
            while len(found) < most:
                counts.decodes += 1
                token, confidence = case.say(tuple(cache))
                found.append(token)
                if not ik and confidence < s.p_min:
                    break
                if len(found) < most:
                    cache.append(token)
        found = found[:limit]
        return found if len(found) >= s.n_min else []

    return serve(case, n_predict, context, draft)


EMULATORS: dict[Profile, Callable[[Case, DraftSettings, int, int], Counts]] = {
    Profile.MAINLINE_2026_10: mainline_2026,
    Profile.MAINLINE_2025: lambda c, s, n, x: kept_cache(c, s, n, x, ik=False),
    Profile.IK_2026_08: lambda c, s, n, x: kept_cache(c, s, n, x, ik=True),
}


def positions(case: Case, n_predict: int, context: int, steps: int) -> Positions:
    """What a replay would have measured."""
    said = [case.say((*case.prompt, *case.text[:i])) for i in range(len(case.text))]
    rollout: dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]] = {}

    def go_on(prefix: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        out = []
        for _ in range(steps):
            token, confidence = case.say(prefix)
            out.append(confidence)
            prefix = (*prefix, token)
        return np.array(out, np.float32)

    for i, (token, _) in enumerate(said):
        if token != case.text[i]:
            rollout[i] = go_on((*case.prompt, *case.text[:i], token))
    return Positions(
        prompt=len(case.prompt),
        reply=reply_length(case.text, n_predict),
        match=np.array([t == e for (t, _), e in zip(said, case.text, strict=True)]),
        confidence=np.array([c for _, c in said], np.float32),
        eog=np.array([t == EOG for t in case.text]),
        rollout=rollout,
        tail=go_on((*case.prompt, *case.text)),
        n_predict=n_predict,
        context=context,
    )


def make_case(seed: int, length: int, skill: float, ends: bool, extra: int) -> Case:
    rng = random.Random(seed)
    text = [rng.randrange(1, VOCABULARY) for _ in range(length)]
    if ends:
        text[-1] = EOG
        text += [rng.randrange(VOCABULARY) for _ in range(extra)]
    prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(1, 6)))
    return Case(prompt, tuple(text), skill, seed)


Request = tuple[Case, DraftSettings, int, int]
"""A text, and what is asked of its server: settings, n_predict and context."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    length, ends, slack = draw(st.integers(1, 40)), draw(st.booleans()), draw(st.integers(0, 6))
    n_max, n_min = draw(st.integers(1, 12)), draw(st.integers(0, 5))
    p_min = draw(st.sampled_from([0.0, 0.0, 0.3, 0.6, 0.9, 1.0]))
    skill = draw(st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]))
    case = make_case(draw(st.integers(0, 10**6)), length, skill, ends, extra=n_max + 1)
    # either the limit ends the reply, or (with an end of generation) the context is what binds
    n_predict = length + (slack * 3 if ends else 0)
    return (
        case,
        DraftSettings(n_max, n_min, p_min),
        n_predict,
        len(case.prompt) + length + 1 + slack,
    )


REQUESTS = requests()


def require_same(got: Simulation, expected: Counts) -> None:
    drafted = got.length > 0
    assert (got.draft_n, got.draft_n_accepted) == (expected.draft_n, expected.accepted)
    assert list(zip(got.length[drafted], got.accepted[drafted], strict=True)) == expected.cycles
    assert int(got.decodes.sum()) == expected.decodes
    assert int(got.catch_up.sum()) == expected.late


@settings(max_examples=400, deadline=None)
@given(profile=st.sampled_from(list(EMULATORS)), asked=REQUESTS)
def test_equals_the_emulated_server(profile: Profile, asked: Request) -> None:
    case, setting, n_predict, context = asked
    expected = EMULATORS[profile](case, setting, n_predict, context)
    found = positions(case, n_predict, context, setting.n_max)
    require_same(simulate(found, setting, profile), expected)


def mainline_head(case: Case, s: DraftSettings, n_predict: int, context: int) -> Counts:
    """common_speculative_impl_draft_mtp of 0c1e570: n_max tokens are drafted whatever fits, n_min
    is looked at before that is cut to what fits, and what has a confidence below p_min is no part
    of it. Its own words are its draft's, never the text's."""

    def draft(i: int, room: int, counts: Counts) -> list[int]:
        found: list[int] = []
        while room > 0 and len(found) < s.n_max:
            counts.decodes += 1
            token, confidence = head_says(case, i, len(found))
            if confidence < s.p_min:
                break
            found.append(token)
        return found[: max(room, 0)] if len(found) >= s.n_min else []

    return serve(case, n_predict, context, draft, eog_break=True)


def ik_head(case: Case, s: DraftSettings, n_predict: int, context: int) -> Counts:
    """common_speculative_state_mtp of ik at 8337e4cd: the first token comes with what was read
    behind the last verification, but in a request's first draft, and is kept in any case."""

    def draft(i: int, room: int, counts: Counts) -> list[int]:
        room, found = min(s.n_max, room), list[int]()
        while room > 0 and room >= s.n_min and len(found) < s.n_max:
            counts.decodes += bool(found) or i == 1
            token, confidence = head_says(case, i, len(found))
            if found and confidence < s.p_min:
                break
            found.append(token)
            if confidence < s.p_min:
                break
        counts.late += bool(found)
        found = found[: max(room, 0)]
        return found if len(found) >= s.n_min else []

    counts = serve(case, n_predict, context, draft)
    counts.late += counts.accepted
    return counts


HEADS: dict[Profile, Callable[[Case, DraftSettings, int, int], Counts]] = {
    Profile.MAINLINE_2026_10: mainline_head,
    Profile.IK_2026_08_MTP: ik_head,
}


def head_says(case: Case, start: int, depth: int) -> tuple[int, float]:
    """A branch of its own from every start: two drafts of one token have nothing in common."""
    return case.say((*case.prompt, *case.text[: start + depth]) if depth == 0 else (start, depth))


def chains(case: Case, n_predict: int, context: int, depth: int, floor: float) -> Positions:
    """What a head's replay would have measured: a branch ends behind its first wrong token, but not
    before its first confidence below ``floor``, if that is above 0."""
    n = len(case.text)
    right, confidence = np.zeros(n, np.int64), np.zeros((n, depth), np.float32)
    for i in range(1, n):
        agrees, sure = True, floor > 0
        for k in range(depth):
            if not agrees and not sure:
                break
            token, confidence[i, k] = head_says(case, i, k)
            agrees = agrees and i + k < n and token == case.text[i + k]
            right[i] += agrees
            sure = sure and bool(confidence[i, k] >= np.float32(floor))
    return Positions(
        prompt=len(case.prompt),
        reply=reply_length(case.text, n_predict),
        match=right > 0,
        eog=np.array([t == EOG for t in case.text]),
        rollout_floor=floor,
        n_predict=n_predict,
        context=context,
        chains=(right, confidence),
    )


@settings(max_examples=300, deadline=None)
@given(profile=st.sampled_from(list(HEADS)), asked=REQUESTS)
def test_a_head_equals_the_emulated_server(profile: Profile, asked: Request) -> None:
    case, setting, n_predict, context = asked
    n_max, p_min = setting.n_max, setting.p_min
    expected = HEADS[profile](case, setting, n_predict, context)
    for floor in {p_min, 0.3 if p_min >= 0.3 else p_min}:  # a lower floor serves a higher p_min
        found = chains(case, n_predict, context, n_max, floor)
        require_same(simulate(found, setting, profile), expected)


def test_a_head_is_asked_for_no_more_than_was_replayed() -> None:
    found = chains(make_case(1, 20, 0.7, False, 0), 20, 1000, 4, 0.0)
    with pytest.raises(InputError, match="drafts of 5 tokens, and replayed were 4"):
        simulate(found, DraftSettings(5), Profile.MAINLINE_2026_10)


@given(seed=st.integers(0, 10**6), skill=st.floats(0, 1), n_max=st.integers(0, 16))
@settings(max_examples=100, deadline=None)
def test_token_identity(seed: int, skill: float, n_max: int) -> None:
    """emitted = 1 + accepted + steps, always (docs/internals/scoring.md#token-identity)."""
    case = make_case(seed, 50, skill, False, 0)
    reply = positions(case, 50, 1000, 1)
    run = simulate(reply, DraftSettings(n_max), Profile.MAINLINE_2026_10)
    assert 1 + run.draft_n_accepted + run.steps == 50
    drafted, accepted = run.by_depth(max(n_max, 1))
    assert drafted.sum() == run.draft_n
    assert accepted.sum() == run.draft_n_accepted
    assert (np.diff(accepted) <= 0).all()


def test_no_draft_at_all() -> None:
    run = simulate(Positions(3, 10, np.ones(10, bool)), DraftSettings(0), Profile.MAINLINE_2026_10)
    assert (run.steps, run.cycles, run.draft_n, int(run.decodes.sum())) == (9, 0, 0, 0)


NEVER, SURE = np.zeros(5, bool), np.ones(5, np.float32)
SHORT = {i: np.ones(1, np.float32) for i in range(5)}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Positions(1, 5, NEVER), "confidences"),
        (Positions(1, 5, NEVER, SURE), "rollouts"),
        (Positions(1, 5, NEVER, SURE, rollout=SHORT), "too short"),
        (Positions(1, 5, NEVER, SURE, rollout_floor=0.6), "out of their reach"),
    ],
)
def test_p_min_needs_confidences_and_rollouts(found: Positions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(found, DraftSettings(3, 0, 0.5), Profile.MAINLINE_2026_10)


def test_impossible_settings_and_lengths_are_refused() -> None:
    for bad in ((-1, 0, 0.0), (1, -1, 0.0), (1, 0, 1.5)):
        with pytest.raises(InputError):
            DraftSettings(*bad)
    with pytest.raises(InputError):
        Positions(1, 3, np.ones(2, bool))
    with pytest.raises(InputError):
        Positions(1, 2, np.ones(2, bool), np.ones(3, np.float32))


def test_a_draft_reaches_beyond_the_reply() -> None:
    """Two cycles: 4 and 4 drafted, since nothing limits the second."""
    run = simulate(Positions(3, 9, np.ones(9, bool)), DraftSettings(4), Profile.MAINLINE_2026_10)
    assert (run.length.tolist(), run.start.tolist()) == ([4, 4], [1, 6])
