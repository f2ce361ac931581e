"""Draft-free methods stated slowly, each as a search of all that it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from cook.engines.speculation import NgramSettings, NgramType
from cook.formats.quant_types import Flavour
from cook.scoring.ngram import NgramRequest, table_order

Run = list[tuple[int, int]]
"""(drafted, accepted) of every step."""


class Slow:
    """One slot. ``text`` is what the method may see: prompt and reply up to the newest token."""

    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        self.settings, self.ik = settings, flavour is Flavour.IK_LLAMA_CPP
        self.n, self.m = settings.size_n or 0, settings.size_m or 0
        self.text: list[int] = []

    def begin(self) -> None: ...

    def draft(self) -> list[int]:
        raise NotImplementedError

    def accept(self, count: int) -> None: ...

    def key(self) -> list[int]:
        return self.text[len(self.text) - self.n :]

    def stands(self, place: int) -> bool:
        """Before the last token: what lies beyond, the engine reads out of bounds (a key that was
        kept of a longer prompt), and nothing is known of it."""
        return self.text[:-1][place : place + self.n] == self.key()

    def answer(self, request: NgramRequest, match: Sequence[bool] = (), n_max: int = 0) -> Run:
        """``match``: whether a draft model is right at each token; it drafts ``n_max`` tokens
        wherever the method has none."""
        prompt, tokens, reply = request.prompt.tolist(), request.tokens.tolist(), request.reply
        eog, limit, context = request.eog, request.n_predict or 0, request.context or 0
        self.text = list(prompt)
        self.begin()
        run: Run = []
        done = 1
        while done < reply:
            self.text = [*prompt, *tokens[:done]]
            rest = tokens[done:]
            room = min(limit - done - 1, context - len(self.text) - 1)
            if self.ik:
                least = min(self.settings.n_min or 0, self.settings.n_max or 0)
                room = min(room, max(self.settings.n_max or 0, n_max))
                usable = 0 if n_max else least
                draft = self.draft() if room > 0 and room >= usable else []
                draft = draft[:room] if len(draft) >= least else []
            else:
                draft = self.draft()[:room] if room > 0 else []
            right = 0
            for number, (mine, theirs) in enumerate(zip(draft, rest, strict=False), 1):
                if mine != theirs or (not self.ik and mine in eog and number < len(draft)):
                    break
                right = number
            if draft:
                self.accept(right)
            length = len(draft)
            if not draft and n_max and room > 0:
                length = min(n_max, room)
                for number in range(min(length, len(rest))):
                    last = number + 1 == length
                    if not match[done + number] or (
                        not self.ik and rest[number] in eog and not last
                    ):
                        break
                    right = number + 1
            run.append((length, right))
            done += right + 1
        return run


class SlowSimple(Slow):
    def draft(self) -> list[int]:
        before = self.text[:-1]
        if len(before) <= self.n + self.m + 1:
            return []
        for place in range(len(before) - self.n - 1, 0, -1):
            if self.stands(place):
                found = before[place + self.n : place + self.n + self.m]
                return found if len(found) >= self.n else []
        return []


class SlowMap(Slow):
    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        super().__init__(settings, flavour)
        self.learnt: list[tuple[tuple[int, ...], int]] = []
        """(key, place), in the order of learning."""
        self.keys: list[dict[str, int]] = []
        self.values: list[list[list[int]]] = []
        """Of each key, four of [place, hits, held]."""
        self.upto = self.checked = self.prompt = 0
        self.last: list[int] | None = None

    def begin(self) -> None:
        size = len(self.text)
        if size < self.checked:
            cut = self.prompt
            if not self.ik and cut > size:
                cut = size - self.n - self.m if size > self.n + self.m else 0
            self.learnt = [(k, p) for k, p in self.learnt if p < cut]
            self.upto = cut - 1 if cut else 0
            for number in reversed(range(len(self.keys))):
                gone = self.keys[number]["place"] >= cut
                if not gone and self.settings.type is NgramType.MAP_K4V:
                    kept = [v for v in self.values[number] if 0 < v[0] < cut]
                    self.values[number] = kept + [[0, 0, 0] for _ in range(4 - len(kept))]
                    gone = not kept
                if gone:
                    del self.keys[number], self.values[number]
        self.checked = self.prompt = size

    def draft(self) -> list[int]:
        self.last = None
        size = len(self.text) - 1
        if size < 2 * self.n + self.m:
            return []
        self.checked = size
        span = self.n + self.m + 1
        new = list(range(self.prompt - span, self.upto, -1)) if self.prompt > span else []
        new += range(size - span, max(self.prompt, self.upto), -1)
        known = [p for k, p in self.learnt if list(k) == self.key() and p < size - span]
        place = next((p for p in (*known, *new) if self.stands(p)), 0)
        for one in new:
            key = tuple(self.text[one : one + self.n])
            if all(key != k for k, _ in self.learnt):
                self.learnt.append((key, one))
        self.upto = max(self.upto, size - span)
        return self.continued(place) if place else []

    def continued(self, place: int) -> list[int]:
        number = next((i for i, k in enumerate(self.keys) if self.stands(k["place"])), None)
        if number is None:
            number = len(self.keys)
            self.keys.append({"place": place, "hits": 0, "counted": 0})
            self.values.append([[0, 0, self.m] for _ in range(4)])
        key, values = self.keys[number], self.values[number]
        key["hits"] += 1
        chosen = values[0]
        if self.settings.type is NgramType.MAP_K4V:
            if key["hits"] < (self.settings.min_hits or 0):
                return []
            for at in range(key["counted"], place + 1):
                if self.stands(at):
                    self.count(values, at + self.n)
            key["counted"] = place
            chosen = max(values, key=lambda v: v[1])
            others = sum(v[1] for v in values) - chosen[1]
            if others and chosen[1] < 2 * others:
                return []
        self.last = chosen
        return self.text[place + self.n : place + self.n + min(self.m, chosen[2])]

    def count(self, values: list[list[int]], at: int) -> None:
        for value in values:
            if value[0] == 0:
                value[:] = [at, 0, self.m]
            said, seen = (self.text[p : p + self.m] for p in (at, value[0]))
            if said == seen:
                value[1] += 1
                return

    def accept(self, count: int) -> None:
        if self.last is not None:
            self.last[2] = count


class SlowMod(Slow):
    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        super().__init__(settings, flavour)
        self.pool: list[tuple[list[int], int]] = []
        self.upto = self.drafted = self.low = 0

    def begin(self) -> None:
        self.upto = self.drafted = 0
        self.low = 0 if self.ik else self.low
        if len(self.text) >= self.n:
            self.add(len(self.text))

    def add(self, end: int) -> None:
        for at in range(self.upto, end - self.n):
            self.pool.append((self.text[at : at + self.n], self.text[at + self.n]))
        self.upto = end - self.n

    def draft(self) -> list[int]:
        self.drafted = 0
        size = len(self.text) - 1
        if size < self.n:
            return []
        if self.upto + 32 < size:
            self.add(size)
        draft: list[int] = []
        for _ in range(self.settings.n_max or 0):
            recent = [*self.text, *draft][-self.n :]
            after = [token for key, token in reversed(self.pool) if key == recent]
            if not after:
                if len(draft) < (self.settings.n_min or 0):
                    return []
                break
            draft.append(after[0])
        self.drafted = len(draft)
        return draft

    def accept(self, count: int) -> None:
        bad, streak = (2, 3) if self.ik else (4, 5)
        self.low = self.low + 1 if count * bad < self.drafted else 0
        if self.low >= streak:
            self.pool, self.low, self.upto = [], 0, 0


class SlowCache(Slow):
    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        super().__init__(settings, flavour)
        self.said: list[tuple[list[int], int]] = []
        self.size = 0

    def draft(self) -> list[int]:
        if self.size < len(self.text):
            new = self.text[self.size :]
            for n in (1, 2, 3, 4):
                self.said += [(new[i - n : i], new[i]) for i in range(n, len(new))]
            self.size = len(self.text)
        draft: list[int] = []
        while len(draft) < 8 and len(self.text) >= 4:
            recent = [*self.text, *draft]
            found = [self.likely(recent[-n:], n) for n in (4, 3, 2, 1)]
            known = [token for token in found if token is not None]
            if not known:
                break
            draft.append(known[0])
        return draft

    def likely(self, key: list[int], n: int) -> int | None:
        after = [token for k, token in self.said if k == key]
        counts = Counter(after)
        least, percent = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}[n]
        if not after or len(after) < least:
            return None
        best = max(table_order(counts), key=lambda token: counts[token])
        return best if 100 * counts[best] >= percent * len(after) else None


class Node:
    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, Node] = {}


class SlowSuffix(Slow):
    """The tree itself, grown by every token."""

    def __init__(self, settings: NgramSettings, flavour: Flavour) -> None:
        super().__init__(settings, flavour)
        self.root, self.bar = Node(), np.float32(0.1)
        self.history: list[int] = []
        self.size = self.drafted = self.low = 0
        self.heard = False

    def begin(self) -> None:
        self.size = self.drafted = self.low = 0
        self.heard = False

    def draft(self) -> list[int]:
        if self.drafted and not self.heard:
            self.worse()
        self.heard = False
        depth = self.settings.depth or 0
        for token in self.text[self.size :]:
            self.history.append(token)
            end = len(self.history)
            for start in range(max(0, end - depth), end):  # every string that ends here
                node = self.root
                for step in self.history[start:end]:
                    node = node.children.setdefault(step, Node())
                node.count += 1
        self.size = max(self.size, len(self.text))
        best, best_score = list[int](), np.float32(0)
        recent = self.text[-depth:]
        for match in range(max(1, self.settings.min_match or 0), len(recent) + 1):
            draft, score = self.walk(recent[len(recent) - match :], match)
            if draft and score > best_score:
                best, best_score = draft, score
        self.drafted = len(best)
        return best

    def walk(self, matched: list[int], match: int) -> tuple[list[int], np.float32]:
        node = self.root
        for token in matched:
            node = node.children[token]
        draft, chance, score = list[int](), np.float32(1), np.float32(0)
        for _ in range(min(self.settings.n_max or 0, match + 8)):
            if not node.children:
                break
            order = table_order(node.children)
            token = max(order, key=lambda t: node.children[t].count)
            child = node.children[token]
            chance = chance * (np.float32(child.count) / np.float32(node.count))
            if chance < self.bar:
                break
            score = score + chance
            draft.append(token)
            node = child
        return draft, score

    def accept(self, count: int) -> None:
        self.heard = True
        if 2 * count < self.drafted:
            self.worse()
            return
        self.low = 0
        floor = np.float32(self.settings.p_min or 0)
        if self.bar > floor:
            self.bar = max(self.bar - np.float32(0.05), floor)

    def worse(self) -> None:
        self.low += 1
        if self.low == 3:
            self.low, self.bar = 0, min(self.bar + np.float32(0.1), np.float32(0.5))


SLOW: dict[NgramType, Callable[[NgramSettings, Flavour], Slow]] = {
    NgramType.SIMPLE: SlowSimple,
    NgramType.MAP_K: SlowMap,
    NgramType.MAP_K4V: SlowMap,
    NgramType.MOD: SlowMod,
    NgramType.CACHE: SlowCache,
    NgramType.SUFFIX: SlowSuffix,
}
