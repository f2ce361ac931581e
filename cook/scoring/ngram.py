"""What draft-free speculation would have drafted and accepted, computed from tokens alone.

An n-gram method drafts from the text, so prompt and reply of a trace say all that it would do;
but most keep what they have seen from one request to the next, so requests are simulated in the
order in which a server gets them, one :class:`NgramServer` from its start to its end. The rules
are those of the engines, oddities included: what each of them does is in
docs/internals/scoring.md#draft-free.

Everything is exact but one thing: where two continuations were seen equally often, ngram-cache
and suffix take the one that comes first in a hash table. :func:`table_order` is that of
libstdc++, which is what builds on Linux have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.engines.base import DraftSettings
from cook.engines.speculation import CACHE_DRAFT, HIGHEST_BAR, NgramSettings, NgramType
from cook.formats.arrays import Ids
from cook.formats.quant_types import Flavour
from cook.scoring.simulate import NO_MODEL, PROFILES, RULES, Positions, Simulation, simulate

_MULTIPLIER, _PRIME = 6_364_136_223_846_793_005, (1 << 61) - 1


@dataclass(frozen=True, eq=False)
class NgramRequest:
    """One request: ``prompt`` and ``tokens`` as ids, those recorded beyond the end included.

    ``reply``: length of the reply (its end-of-generation token counts); ``eog``: ids that end
    generation; ``n_predict``: the request's limit; ``context``: the slot's bound.
    """

    prompt: Ids
    tokens: Ids
    reply: int
    eog: frozenset[int]
    n_predict: int | None = None
    context: int | None = None


class NgramServer:
    """One slot of one server that drafts by ``settings`` (with all numbers said).

    It counts as :data:`cook.scoring.simulate.PROFILES` has it of the flavour's servers.
    """

    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        self._settings, self._profile = settings, PROFILES[flavour]
        self._method = _METHODS[settings.type](settings, _HABITS[flavour])

    def answer(
        self,
        request: NgramRequest,
        model: Positions | None = None,
        then: DraftSettings = NO_MODEL,
    ) -> Simulation:
        """The steps of one request; what was learnt from it stays.

        ``model``: the same reply as a draft model sees it, which drafts by ``then`` wherever the
        method has no draft.
        """
        return simulate(
            model
            or Positions(
                prompt=len(request.prompt),
                reply=request.reply,
                match=np.zeros(len(request.tokens), np.bool_),
                eog=np.isin(request.tokens, list(request.eog)),
                n_predict=request.n_predict,
                context=request.context,
            ),
            then,
            self._profile,
            self.begin(request),
        )

    def begin(self, request: NgramRequest) -> Stage:
        """What drafts in one request, step by step; what it learns there stays."""
        text = [*request.prompt.tolist(), *request.tokens.tolist()]
        prompt = len(request.prompt)
        self._method.begin(text, prompt)
        return Stage(self._settings, self._method, text, prompt, bounded=self._bounded)

    @property
    def _bounded(self) -> bool:
        return RULES[self._profile].skips_short_room


@dataclass(frozen=True)
class Stage:
    """The method over one reply, whose position i is ``text[prompt + i]``.

    ``bounded``: the engine throws away what is shorter than the method's n_min (ik; mainline's
    methods bound themselves).
    """

    settings: NgramSettings
    method: _Method
    text: Sequence[int]
    prompt: int
    bounded: bool

    @property
    def n_max(self) -> int:
        return self.settings.n_max or 0

    @property
    def n_min(self) -> int:
        return self.settings.n_min or 0

    def tokens(self, i: int, room: int) -> list[int]:
        """The draft for position ``i``, at most ``room`` tokens."""
        draft = self.method.draft(self.prompt + i - 1)
        return [] if self.bounded and len(draft) < min(self.n_min, self.n_max) else draft[:room]

    def draft(self, i: int, room: int) -> tuple[int, int]:
        """See :class:`cook.scoring.simulate.FirstStage`."""
        draft = self.tokens(i, room)
        at = self.prompt + i
        count = 0
        while (
            count < len(draft)
            and at + count < len(self.text)
            and draft[count] == self.text[at + count]
        ):
            count += 1
        return len(draft), count

    def accept(self, count: int) -> None:
        self.method.accept(count)


@dataclass(frozen=True)
class _Habits:
    """In what the flavours' methods differ.

    ``forgets``: ngram-map drops what stood after the last request's prompt wherever a prompt is
    shorter than the text before, even where that prompt was longer than this one (ik; mainline
    then drops all but the new prompt's last keys). ngram-mod empties its pool after
    ``low_streak`` drafts in a row of which less than ``low_share`` was accepted; ``new_streak``:
    a new request begins a new streak.
    """

    forgets: bool
    low_share: float
    low_streak: int
    new_streak: bool


_HABITS = {
    Flavour.LLAMA_CPP: _Habits(forgets=False, low_share=0.25, low_streak=5, new_streak=False),
    Flavour.IK_LLAMA_CPP: _Habits(forgets=True, low_share=0.5, low_streak=3, new_streak=True),
}


class _Method(ABC):
    """One method and what it keeps; ``text`` is known to its end, and read up to ``last``."""

    def __init__(self, settings: NgramSettings, habits: _Habits) -> None:
        self.settings, self.habits = settings, habits
        self.text: list[int] = []

    def begin(self, text: list[int], prompt: int) -> None:
        """A request whose first ``prompt`` tokens have been read."""
        self.text = text

    @abstractmethod
    def draft(self, last: int) -> list[int]:
        """What is drafted after ``text[last]``, the newest token."""

    def accept(self, count: int) -> None:
        """``count`` tokens of the last draft, which had some, were right."""
        return


class _Places:
    """Where each run of ``n`` tokens of ``text`` stands in it."""

    def __init__(self, text: list[int], n: int) -> None:
        self._text, self._n = text, n
        self._hashes = _hashes(text, n, _MULTIPLIER, _PRIME, np.uint64).tolist()
        self._of: dict[int, list[int]] = {}
        for place, one in enumerate(self._hashes):
            self._of.setdefault(one, []).append(place)

    def last(self, run: int, above: int, to: int) -> int:
        """The last place in (``above``, ``to``] of the run at ``run``; 0 where there is none."""
        found = self.between(run, above + 1, to)
        return found[-1] if found else 0

    def between(self, run: int, first: int, to: int) -> list[int]:
        """All places in [``first``, ``to``] of the run at ``run``, in order."""
        alike = self._of[self._hashes[run]]
        alike = alike[bisect_left(alike, first) : bisect_right(alike, to)]
        tokens = self._text[run : run + self._n]
        return [at for at in alike if self._text[at : at + self._n] == tokens]


class _Simple(_Method):
    """The latest earlier place of the last ``size_n`` tokens, and what followed there."""

    def begin(self, text: list[int], prompt: int) -> None:
        super().begin(text, prompt)
        self.places = _Places(text, self.settings.size_n or 0)

    def draft(self, last: int) -> list[int]:
        n, m = self.settings.size_n or 0, self.settings.size_m or 0
        if last <= n + m + 1:
            return []
        place = self.places.last(last - n + 1, 0, last - n - 1)
        count = min(m, last - place - n)
        # A match too near the end is no draft, and an earlier one is not looked for.
        if not place or count < n:
            return []
        return self.text[place + n : place + n + count]


@dataclass
class _Value:
    """A continuation of a key: where it was first seen (0: unused), how often, how much held."""

    place: int = 0
    hits: int = 0
    held: int = 0


@dataclass
class _Known:
    """A key of ngram-map: where it was found, and what has followed it."""

    place: int
    values: list[_Value]
    hits: int = 0
    counted_to: int = 0


_VALUES, _MOST_HITS = 4, 16_380
_BUCKETS = 262_144
_LCG = 2_654_435_761


class _Map(_Method):
    """Keys that were met again, and how well the continuation of each held.

    Places are those of the text in which they were found, and stay where a longer prompt comes:
    there they point to whatever stands at that place now.
    """

    def __init__(self, settings: NgramSettings, habits: _Habits) -> None:
        super().__init__(settings, habits)
        self.by_hash: dict[int, int] = {}
        self.hashed_to = 0
        self.known: list[_Known] = []
        self.checked_to = 0
        self.prompt = 0
        self.used: _Value | None = None
        """The value behind the last draft."""

    @property
    def key_only(self) -> bool:
        return self.settings.type is NgramType.MAP_K

    def begin(self, text: list[int], prompt: int) -> None:
        super().begin(text, prompt)
        n, m = self.settings.size_n or 0, self.settings.size_m or 0
        self.places = _Places(text, n)
        self.hashes = _hashes(text, n, _LCG, _BUCKETS, np.uint32)
        if prompt < self.checked_to:
            valid = self.prompt
            if not self.habits.forgets and valid > prompt:
                valid = max(prompt - n - m, 0)
            # Drop every place from `valid` on.
            self.by_hash = {h: place for h, place in self.by_hash.items() if place < valid}
            self.hashed_to = max(valid - 1, 0)
            self.known = [k for k in self.known if k.place < valid and self._keeps(k, valid)]
        self.checked_to = self.prompt = prompt

    def _keeps(self, key: _Known, valid: int) -> bool:
        """Whether a key has values left, the later ones moved up."""
        if self.key_only:
            return True
        kept = [v for v in key.values if not v.place or v.place < valid]
        key.values = kept + [_Value() for _ in range(_VALUES - len(kept))]
        return key.values[0].place != 0

    def draft(self, last: int) -> list[int]:
        n, m = self.settings.size_n or 0, self.settings.size_m or 0
        self.used = None
        if last < 2 * n + m:
            return []
        self.checked_to = last
        place = self._find(last)
        self._learn(last)
        if not place:
            return []
        known = next((k for k in self.known if self._same(k.place, last)), None)
        if known is None:
            known = _Known(place, [_Value(held=m) for _ in range(_VALUES)])
            self.known.append(known)
        known.hits = min(known.hits + 1, _MOST_HITS)
        value = known.values[0] if self.key_only else self._best(known, place)
        if value is None:
            return []
        self.used = value
        return self.text[place + n : place + n + min(m, value.held)]

    def accept(self, count: int) -> None:
        if self.used is not None:
            self.used.held = count

    def _same(self, place: int, last: int) -> bool:
        """Whether the key that ends at ``last`` stands at ``place``, and wholly before."""
        n = self.settings.size_n or 0
        key = self.text[last - n + 1 : last + 1]
        return place + n <= last and self.text[place : place + n] == key

    def _find(self, last: int) -> int:
        """An earlier place of the key that ends at ``last``, with room behind it, or 0."""
        n, m = self.settings.size_n or 0, self.settings.size_m or 0
        run, end = last - n + 1, last - n - m - 1
        place = self.by_hash.get(int(self.hashes[run]), 0)
        if place and place < end and self._same(place, last):
            return place
        if self.prompt > n + m + 1:
            place = self.places.last(run, self.hashed_to, self.prompt - n - m - 1)
            if place:
                return place
        return self.places.last(run, max(self.prompt, self.hashed_to), end)

    def _learn(self, last: int) -> None:
        """Hash the places since the last draft; the first of a hash stays, of new ones the last."""
        span = (self.settings.size_n or 0) + (self.settings.size_m or 0) + 1
        ranges = [(self.hashed_to, self.prompt - span)] if self.prompt > span else []
        for above, to in (*ranges, (max(self.prompt, self.hashed_to), last - span)):
            for place in range(to, above, -1):
                self.by_hash.setdefault(int(self.hashes[place]), place)
        self.hashed_to = max(last - span, self.hashed_to)

    def _best(self, known: _Known, place: int) -> _Value | None:
        """The value of k4v that is twice as frequent as all others together."""
        if known.hits < (self.settings.min_hits or 0):
            return None
        n, m = self.settings.size_n or 0, self.settings.size_m or 0
        # From the place of the last count on, which is therefore counted again each time.
        for at in self.places.between(place, known.counted_to, place):
            said = self.text[at + n : at + n + m]
            for value in known.values:
                if not value.place:
                    value.place, value.hits, value.held = at + n, 0, m
                if self.text[value.place : value.place + m] == said:
                    value.hits = min(value.hits + 1, _MOST_HITS)
                    break
        known.counted_to = place
        best = max(known.values, key=lambda v: v.hits)
        others = sum(v.hits for v in known.values) - best.hits
        return None if others and best.hits < 2 * others else best


def _hashes(
    text: Sequence[int], n: int, factor: int, buckets: int, word: type[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Of every run of ``n`` tokens, its polynomial hash in words that wrap around."""
    ids = np.array(text, np.int64).astype(word)
    count = max(len(text) - n + 1, 0)
    found = np.zeros(count, word)
    for k in range(n):
        found = found * word(factor) + ids[k : k + count]
    return np.asarray(found % word(buckets))


_POOL = 4 << 20
_FULL, _LAZY = 0.25, 32


class _Mod(_Method):
    """A pool of hashed n-grams, each with the token that last followed; shared by all requests."""

    def __init__(self, settings: NgramSettings, habits: _Habits) -> None:
        super().__init__(settings, habits)
        self.pool: dict[int, int] = {}
        self.added_to = 0
        self.drafted = 0
        self.low = 0

    def begin(self, text: list[int], prompt: int) -> None:
        super().begin(text, prompt)
        n = self.settings.size_n or 0
        self.hashes = _hashes(text, n, _MULTIPLIER, _POOL, np.uint64)
        self.added_to = self.drafted = 0
        if self.habits.new_streak:
            self.low = 0
        if prompt >= n:
            self._add(prompt)
            if len(self.pool) / _POOL > _FULL:
                self.pool.clear()

    def _add(self, end: int) -> None:
        """Every n-gram of ``text[:end]`` that is not in yet."""
        n = self.settings.size_n or 0
        at, to = self.added_to, end - n
        # Of equal hashes the last one stays.
        self.pool.update(zip(self.hashes[at:to].tolist(), self.text[at + n : to + n], strict=True))
        self.added_to = to

    def draft(self, last: int) -> list[int]:
        n, n_min = self.settings.size_n or 0, self.settings.n_min or 0
        self.drafted = 0
        if last < n:
            return []
        if self.added_to + _LAZY < last:
            self._add(last)
        said = self.text[last - n + 1 : last + 1]
        while len(said) - n < (self.settings.n_max or 0):
            token = self.pool.get(_pool_place(said[-n:]))
            if token is None:
                if len(said) - n < n_min:
                    return []
                break
            said.append(token)
        self.drafted = len(said) - n
        return said[n:]

    def accept(self, count: int) -> None:
        if not self.drafted:
            return
        if count / self.drafted >= self.habits.low_share:
            self.low = 0
            return
        self.low += 1
        if self.low >= self.habits.low_streak:
            self.pool.clear()
            self.low = self.added_to = 0


def _pool_place(ngram: Sequence[int]) -> int:
    found = 0
    for token in ngram:
        found = (found * _MULTIPLIER + token) % _POOL  # a power of two: wrapping words agree
    return found


_SIZES = (4, 3, 2, 1)
_LEAST_SEEN = {1: 2, 2: 2, 3: 1, 4: 1}
_LEAST_PERCENT = {1: 66, 2: 50, 3: 50, 4: 50}


class _Cache(_Method):
    """Counts of what followed 1 to 4 tokens; never emptied, and counted by positions.

    It adds what lies beyond the most tokens that it has ever seen in a text, and of these only
    n-grams that lie wholly within: a single new token adds nothing.
    """

    def __init__(self, settings: NgramSettings, habits: _Habits) -> None:
        super().__init__(settings, habits)
        self.counts: dict[tuple[int, ...], dict[int, int]] = {}
        self.seen = 0

    def draft(self, last: int) -> list[int]:
        if self.seen < last + 1:
            self._add(self.text[self.seen : last + 1])
            self.seen = last + 1
        recent = self.text[max(0, last + 1 - _SIZES[0]) : last + 1]
        drafted: list[int] = []
        while len(drafted) < CACHE_DRAFT and len(recent) == _SIZES[0]:
            token = self._next(recent)
            if token is None:
                break
            drafted.append(token)
            recent = [*recent[1:], token]
        return drafted

    def _add(self, new: Sequence[int]) -> None:
        for size in sorted(_SIZES):
            for at in range(size, len(new)):
                followers = self.counts.setdefault(tuple(new[at - size : at]), {})
                followers[new[at]] = followers.get(new[at], 0) + 1

    def _next(self, recent: Sequence[int]) -> int | None:
        for size in _SIZES:
            followers = self.counts.get(tuple(recent[-size:]))
            if followers is None:
                continue
            token, seen = most_frequent(followers), sum(followers.values())
            if seen >= _LEAST_SEEN[size] and 100 * followers[token] >= _LEAST_PERCENT[size] * seen:
                return token
        return None


_REACH = 8
"""Tokens that suffix drafts beyond as many as matched."""
_FIRST_BAR, _HIGHEST_BAR = np.float32(0.1), np.float32(HIGHEST_BAR)
_RAISE, _LOWER = np.float32(0.1), np.float32(0.05)
_LOW_SHARE, _LOW_STREAK = 0.5, 3


class _Suffix(_Method):
    """Continuations of every suffix of the text, in a history that only grows (ik).

    The engine keeps a tree of all strings of up to ``depth`` tokens with their counts; a count
    is the number of places where the string stands in the history, which is what is kept here.
    Its bar, below which no continuation's probability may fall, rises when drafts fail, and falls
    back to p_min only where that is lower: with the engine's 0.75 it never does.
    """

    def __init__(self, settings: NgramSettings, habits: _Habits) -> None:
        super().__init__(settings, habits)
        self.history: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = {}
        """Of every shortest match, the places behind it."""
        self.bar = _FIRST_BAR
        self.seen = self.drafted = self.low = 0
        self.answered = False

    @property
    def shortest(self) -> int:
        return max(1, self.settings.min_match or 0)

    def begin(self, text: list[int], prompt: int) -> None:
        super().begin(text, prompt)
        self.seen = self.drafted = self.low = 0
        self.answered = False

    def draft(self, last: int) -> list[int]:
        if self.drafted and not self.answered:
            self._fail()
        self.answered = False
        for token in self.text[self.seen : last + 1]:
            self.history.append(token)
            if len(self.history) >= self.shortest:
                key = tuple(self.history[-self.shortest :])
                self.ends.setdefault(key, []).append(len(self.history))
        self.seen = max(self.seen, last + 1)
        draft = self._best(min(last + 1, self.settings.depth or 0))
        self.drafted = len(draft)
        return draft

    def _best(self, context: int) -> list[int]:
        """The draft whose tokens' probabilities have the highest sum, over lengths of match."""
        best: list[int] = []
        best_score = np.float32(0)
        if context < self.shortest:
            return best
        history, end = self.history, len(self.history)
        places = self.ends[tuple(history[end - self.shortest :])]
        for match in range(self.shortest, context + 1):
            if match > self.shortest:
                wanted = history[end - match]
                places = [p for p in places if p >= match and history[p - match] == wanted]
            if len(places) == 1:
                break  # only the text's own end
            draft, score = self._follow(places, match)
            if score > best_score:
                best, best_score = draft, score
        return best

    def _follow(self, places: list[int], match: int) -> tuple[list[int], np.float32]:
        """The likeliest continuation of what stands before ``places``."""
        most = min(self.settings.n_max or 0, match + _REACH)
        depth, history = self.settings.depth or 0, self.history
        draft: list[int] = []
        score, chance = np.float32(0), np.float32(1)
        while len(draft) < most and match + len(draft) < depth:
            after: dict[int, list[int]] = {}
            for place in places:
                if place < len(history):
                    after.setdefault(history[place], []).append(place + 1)
            if not after:
                break
            token = most_frequent({t: len(found) for t, found in after.items()})
            chance = chance * (np.float32(len(after[token])) / np.float32(len(places)))
            if chance < self.bar:
                break
            score = score + chance
            draft.append(token)
            places = after[token]
        return draft, score

    def accept(self, count: int) -> None:
        if not self.drafted:
            return
        self.answered = True
        if count / self.drafted < _LOW_SHARE:
            self._fail()
            return
        self.low = 0
        floor = np.float32(self.settings.p_min or 0.0)
        if self.bar > floor:
            self.bar = max(self.bar - _LOWER, floor)

    def _fail(self) -> None:
        self.low += 1
        if self.low >= _LOW_STREAK:
            self.bar = min(self.bar + _RAISE, _HIGHEST_BAR)
            self.low = 0


_METHODS: dict[NgramType, type[_Method]] = {
    NgramType.SIMPLE: _Simple,
    NgramType.MAP_K: _Map,
    NgramType.MAP_K4V: _Map,
    NgramType.MOD: _Mod,
    NgramType.CACHE: _Cache,
    NgramType.SUFFIX: _Suffix,
}


def most_frequent(counts: dict[int, int]) -> int:
    """The key of the largest count, keys in the order in which they were first counted."""
    most = max(counts.values())
    tied = [token for token, count in counts.items() if count == most]
    if len(tied) == 1:
        return tied[0]
    chosen = set(tied)
    return next(token for token in table_order(counts) if token in chosen)


_FIRST_BUCKETS = 13
_PRIMES = (
    *(29, 59, 127, 257, 541, 1109, 2357, 5087, 10_273, 20_753),
    *(42_043, 85_229, 172_933, 351_061, 712_697, 1_447_153),
)
"""Sizes to which a table of libstdc++ grows (``__prime_list`` from 13 on, doubling)."""


def table_order(keys: Iterable[int]) -> list[int]:
    """The order in which ``std::unordered_map<int, ...>`` of libstdc++ yields ``keys``.

    They were inserted in the order given. A key goes before all others of its bucket, and a new
    bucket before all buckets; so it does again, in the table's order, when the table grows.
    """
    order: list[int] = []
    buckets, larger = _FIRST_BUCKETS, iter(_PRIMES)
    for key in keys:
        if len(order) == buckets:
            buckets = next(larger)
            order = _inserted(order, buckets)
        _insert(order, key, buckets)
    return order


def _inserted(keys: Iterable[int], buckets: int) -> list[int]:
    order: list[int] = []
    for key in keys:
        _insert(order, key, buckets)
    return order


def _insert(order: list[int], key: int, buckets: int) -> None:
    mine = key % buckets
    order.insert(next((at for at, one in enumerate(order) if one % buckets == mine), 0), key)
