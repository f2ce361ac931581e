"""What a server of several slots does with requests in parallel: its loop, step by step, priced.

Slots share batches. A step of mainline's server has all slots that generate draft together, a
token of each in one batch, verifies what they drafted in one batch, and reads pending prompts in
the same (update_slots of tools/server/server-context.cpp, draft_simple of common/speculative.cpp).
What a reply's steps are hangs on its tokens alone, so that each request goes through the steps that
were simulated for one slot; what a step takes hangs on who else is in it.

With ``--parallel N`` each slot has a KV cache of its own, and what the library decodes at once are
equally many tokens of slots whose numbers follow on each other (llama_batch_allocr::split_equal):
a batch of unequal drafts is several physical ones (docs/internals/scoring.md#slots).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve
from cook.scoring.simulate import Simulation

_DEPTH_GRAIN = 8
"""Tokens of depth that are priced as one: a step's price is looked up again and again."""


@dataclass(frozen=True)
class SimulatedReply:
    """``run`` of a reply of ``reply`` tokens after a prompt of ``prompt`` tokens."""

    run: Simulation
    prompt: int
    reply: int


@dataclass(frozen=True)
class SlotCurves:
    """Seconds of one physical batch of a model: ``batches`` by the number of sequences in it, from
    1; ``prompts`` of one prompt by its tokens."""

    batches: Mapping[int, BatchCurve]
    prompts: BatchCurve
    _known: dict[tuple[int, int, int], float] = field(default_factory=dict, compare=False)

    def at(self, sequences: int, width: int, depth: float) -> float:
        """Of ``width`` tokens of each of ``sequences`` after ``depth`` tokens.

        Between numbers of sequences that were timed linear; InputError beyond them.
        """
        key = sequences, width, int(depth) // _DEPTH_GRAIN
        if key not in self._known:
            timed = sorted(self.batches)
            place = bisect_left(timed, sequences)
            if not 1 <= sequences <= timed[-1]:
                raise InputError(f"{sequences} slots are to be priced, and {timed[-1]} were timed")
            if width > self.batches[1].widths[-1]:
                seconds = self._read(sequences * width, int(depth))
            else:
                seconds = float(self.batches[timed[place]].at(width, self._within(depth)))
                if timed[place] != sequences:
                    low = float(self.batches[timed[place - 1]].at(width, self._within(depth)))
                    part = (sequences - timed[place - 1]) / (timed[place] - timed[place - 1])
                    seconds = low + part * (seconds - low)
            self._known[key] = seconds
        return self._known[key]

    def _within(self, depth: float) -> float:
        """Prompts begin at depth 0, and requests of others in between: the nearest timed depth."""
        depths = self.batches[1].depths
        return min(max(depth, depths[0]), depths[-1])

    def _read(self, tokens: int, known: int) -> float:
        """Tokens of prompts, after ``known``; beyond the longest that was timed as its end goes."""
        longest = self.prompts.widths[-1]

        def whole(size: int) -> float:
            if size <= longest:
                return float(self.prompts.at(max(size, 1), 0))
            return float(self.prompts.at(longest, 0)) * size / longest

        return whole(known + tokens) - whole(known) if known else whole(tokens)


@dataclass(frozen=True)
class SlotPrices:
    """What a server's steps cost, in seconds; ``draft`` None: it has none.

    ``factor``: live over forecast time of one slot's steps. ``*_sample_s``: the sampler for one
    token. ``batch`` tokens are decoded at once at most.
    """

    target: SlotCurves
    draft: SlotCurves | None = None
    target_sample_s: float = 0.0
    draft_sample_s: float = 0.0
    batch: int = 2048
    factor: float = 1.0


@dataclass(frozen=True)
class ServedInParallel:
    """All requests served by ``slots`` clients that each ask for the next one once they have an
    answer.

    ``tokens`` after each reply's first, ``seconds`` from the first request to the last answer;
    ``decode_s`` from the first token to the last, over all replies; ``steps`` of the server.
    """

    slots: int
    requests: int
    tokens: int
    seconds: float
    decode_s: float
    steps: int

    @property
    def tokens_per_s(self) -> float:
        """Of all slots together, prompts and waiting included."""
        return self.tokens / self.seconds

    @property
    def tokens_per_s_each(self) -> float | None:
        """What one client sees: of a reply, from its first token on."""
        return self.tokens / self.decode_s if self.decode_s > 0 else None


def require_room(slots: int, n_max: int, batch: int) -> None:
    """InputError where a server's ``batch`` cannot hold what all slots verify at once: it then
    ends in the midst of a request."""
    widest = slots * (n_max + 1)
    if widest > batch:
        raise InputError(
            f"{slots} slots that draft {n_max} tokens each verify {widest} at once, and a batch "
            f"holds {batch}",
            hint=f"fewer slots, shorter drafts, or `batch: {widest}` of the target",
        )


@dataclass
class _Slot:
    """A slot at work on ``request``: tokens of the prompt read, and steps taken so far."""

    number: int
    request: SimulatedReply
    read: int = 0
    step: int = 0
    first_s: float = 0.0

    @property
    def generates(self) -> bool:
        return self.read == self.request.prompt

    @property
    def depth(self) -> int:
        """Tokens of it in the KV cache before the coming step."""
        if not self.generates:
            return self.read
        return self.request.prompt + int(self.request.run.start[self.step]) - 1

    @property
    def ended(self) -> bool:
        return self.generates and self.step == self.request.run.steps


def serve(requests: Sequence[SimulatedReply], slots: int, prices: SlotPrices) -> ServedInParallel:
    """``requests``, in this order, on a server of ``slots`` slots with as many clients."""
    if not requests or slots < 1:
        raise InputError("no requests, or no slots, to serve")
    waiting = list(reversed(requests))
    idle_since_s = dict.fromkeys(range(slots), 0.0)
    busy: list[_Slot] = []
    coming_s = [0.0] * min(slots, len(requests))  # when clients will have asked for the next one
    now_s = decode_s = 0.0
    steps = 0
    while coming_s or busy:
        if not busy:
            now_s = max(now_s, coming_s[0])
        while coming_s and coming_s[0] <= now_s:
            heapq.heappop(coming_s)
            number = min(idle_since_s, key=lambda one: (idle_since_s[one], one))
            del idle_since_s[number]
            busy.append(_Slot(number, waiting.pop()))
        busy.sort(key=lambda slot: slot.number)
        seconds, stepped, read = _step(busy, prices)
        now_s += seconds * prices.factor
        steps += 1
        for slot in stepped:
            slot.step += 1
        for slot, tokens in read:
            slot.read += tokens
            slot.first_s = now_s
        for slot in [slot for slot in busy if slot.ended]:
            decode_s += now_s - slot.first_s
            busy.remove(slot)
            idle_since_s[slot.number] = now_s
            if len(coming_s) < len(waiting):
                heapq.heappush(coming_s, now_s)
    tokens = sum(request.reply - 1 for request in requests)
    return ServedInParallel(slots, len(requests), tokens, now_s, decode_s, steps)


def _step(
    busy: Sequence[_Slot], prices: SlotPrices
) -> tuple[float, list[_Slot], list[tuple[_Slot, int]]]:
    """Seconds of one step of the server, the slots that generate in it, and the others with the
    tokens that they read of their prompts."""
    generating = [slot for slot in busy if slot.generates]
    widths = [(slot, int(slot.request.run.length[slot.step]) + 1) for slot in generating]
    room = prices.batch - sum(width for _, width in widths)
    read = []
    for slot in busy:
        tokens = min(slot.request.prompt - slot.read, room)
        if tokens > 0:
            read.append((slot, tokens))
            room -= tokens
    seconds = 0.0
    if prices.draft is not None:  # a token of each slot that still drafts, batch after batch
        left = [(slot, int(slot.request.run.decodes[slot.step])) for slot in generating]
        seconds = sum(count for _, count in left) * prices.draft_sample_s
        for turn in range(max((count for _, count in left), default=0)):
            for group, _, _ in _physical([(slot, 1) for slot, count in left if count > turn]):
                depth = sum(slot.depth for slot in group) / len(group) + turn
                seconds += prices.draft.at(len(group), 1, depth)
    for group, width, done in _physical([*widths, *read]):
        depth = sum(slot.depth for slot in group) / len(group) + done
        seconds += prices.target.at(len(group), width, depth)
        if prices.draft is not None:
            seconds += prices.draft.at(len(group), width, depth)
    emitted = sum(int(slot.request.run.accepted[slot.step]) + 1 for slot in generating)
    return seconds + emitted * prices.target_sample_s, generating, read


def _physical(
    widths: Sequence[tuple[_Slot, int]],
) -> Iterator[tuple[list[_Slot], int, int]]:
    """What a batch of so many tokens of each slot, in this order, is decoded as: slots, tokens of
    each, and tokens of each that went before (split_equal, sequential)."""
    left = {slot.number: tokens for slot, tokens in widths}
    done = dict.fromkeys(left, 0)
    while left:
        group: list[_Slot] = []
        for slot, _ in widths:
            if slot.number in left and (not group or slot.number == group[-1].number + 1):
                group.append(slot)
        width = min(left[slot.number] for slot in group)
        yield group, width, sum(done[slot.number] for slot in group) // len(group)
        for slot in group:
            done[slot.number] += width
            left[slot.number] -= width
            if not left[slot.number]:
                del left[slot.number]
