"""From the events of a log to its requests: parts put together, two tellings made one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from cook.errors import InputError
from cook.formats.server_log_events import (
    Acceptance,
    Answer,
    Drafter,
    Event,
    Loading,
    Sweep,
    Timing,
    Where,
)

MAX_REQUESTS = 1_000_000
_MAX_PROCESSES = 1024
_MAX_PENDING = 256
_ANSWER_IDS = 4096
_MAX_SWEEP_ROWS = 100_000


@dataclass(slots=True)
class LoggedRequest:
    """One request; nobody changes it once it is read.

    ``line`` (from 1) is where it was first told; times are in ms. ``target`` and ``draft`` are
    the models' names where the log says them. None is what the log does not tell;
    ``told_tokens_per_s`` is the decode rate in the log's own words.
    """

    line: int
    target: str | None = None
    draft: str | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    told_tokens_per_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    by_depth: tuple[tuple[int, int, int], ...] = ()
    """(depth, drafted, accepted), depth from 1; ik tells it."""


@dataclass
class _Models:
    """The models of one server process, as far as its log has told them.

    Both engines load the target first; mainline says which is which, ik the file names only.
    A model loaded after a request belongs to a new server under the same name.
    """

    target: str | None = None
    draft: str | None = None
    files: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    served: bool = False

    def outdated_by(self, loading: Loading) -> bool:
        """Whether ``loading`` is of a new server: this one has served, or had another target."""
        return self.served or (loading.draft is False and self.target not in (None, loading.name))

    def load(self, loading: Loading) -> None:
        if loading.draft is not None:
            if loading.draft:
                self.draft = loading.name
            else:
                self.target = loading.name
            return
        seen = self.files if loading.file else self.names
        if loading.name and loading.name not in seen and len(seen) < 2:
            seen.append(loading.name)

    def pair(self) -> tuple[str | None, str | None]:
        target = self.target or _nth(self.files, 0) or _nth(self.names, 0)
        draft = self.draft or _nth(self.files, 1) or _nth(self.names, 1)
        return target, draft


def _nth(items: list[str], index: int) -> str | None:
    return items[index] if index < len(items) else None


class Requests:
    """Puts the lines of a request together, and the two tellings of one request."""

    def __init__(self) -> None:
        self.drafters: dict[tuple[str, str], Drafter] = {}
        self.sweeps: list[list[Sweep]] = []
        self._sweep_rows = 0
        self._found: list[LoggedRequest] = []
        self._by_times: dict[tuple[int | None, str, int | None, str], int] = {}
        self._by_id: OrderedDict[str, int] = OrderedDict()
        self._pending: OrderedDict[Where, LoggedRequest] = OrderedDict()
        self._models: OrderedDict[str, _Models] = OrderedDict()

    def take(self, event: Event, line: int) -> None:
        if isinstance(event, Timing):
            self._timing(event, line)
        elif isinstance(event, Acceptance):
            self._acceptance(event, line)
        elif isinstance(event, Answer):
            self._answer(event, line)
        elif isinstance(event, Loading):
            self._load(event)
        elif isinstance(event, Sweep):
            self._sweep(event)
        elif isinstance(event, Drafter) and len(self.drafters) < _MAX_PROCESSES:
            self.drafters[event.where.process, event.name] = event

    def _sweep(self, row: Sweep) -> None:
        self._sweep_rows += 1
        if self._sweep_rows > _MAX_SWEEP_ROWS:
            return
        if not self.sweeps or row.n_kv <= self.sweeps[-1][-1].n_kv:
            self.sweeps.append([])
        self.sweeps[-1].append(row)

    def _load(self, loading: Loading) -> None:
        process = loading.where.process
        if self._pending:
            for where in [w for w in self._pending if w.process == process]:
                self._add(self._pending.pop(where))
        if self._of(loading.where).outdated_by(loading):
            self._models[process] = _Models()
        self._models[process].load(loading)

    def all(self) -> tuple[LoggedRequest, ...]:
        """Every request, in the order in which the log first tells of them."""
        while self._pending:
            self._close_oldest()
        return tuple(sorted(self._found, key=lambda request: request.line))

    def _timing(self, timing: Timing, line: int) -> None:
        open_ = self._pending.get(timing.where)
        if open_ is not None and (timing.prompt or open_.predicted_n is not None):
            self._add(self._pending.pop(timing.where))
            open_ = None
        request = open_ or self._new(timing.where, line)
        if timing.prompt:
            request.prompt_n, request.prompt_ms = timing.n, timing.ms
        else:
            request.predicted_n, request.predicted_ms = timing.n, timing.ms
            request.told_tokens_per_s = timing.told
        self._pend(timing.where, request)

    def _acceptance(self, told: Acceptance, line: int) -> None:
        where = told.where
        if not where.slot:  # ik continues the block of the last slot without its prefix
            same = [w for w in self._pending if w.process == where.process]
            where = same[-1] if same else where
        request = self._pending.get(where)
        if request is not None and request.drafted is not None:
            self._add(self._pending.pop(where))
            request = None
        request = request or self._new(where, line)
        request.drafted, request.accepted = told.drafted, told.accepted
        self._pend(where, request)

    def _answer(self, answer: Answer, line: int) -> None:
        request = replace(
            self._new(answer.where, line),
            prompt_n=answer.prompt_n,
            prompt_ms=answer.prompt_ms,
            predicted_n=answer.predicted_n,
            predicted_ms=answer.predicted_ms,
            told_tokens_per_s=answer.told,
            drafted=answer.drafted,
            accepted=answer.accepted,
            by_depth=answer.by_depth,
        )
        request = replace(request, target=request.target or answer.model)
        earlier = self._by_id.get(answer.id) if answer.id else None
        if earlier is None:
            index = self._add(request)
        else:  # a later chunk of the same answer has the later totals
            index, before = earlier, self._found[earlier]
            if (request.predicted_n or 0) >= (before.predicted_n or 0):
                self._by_times.pop(_times(before), None)
                self._found[index] = _merged(request, before)
                self._by_times[_times(request)] = index
        if answer.id:
            self._by_id[answer.id] = index
            while len(self._by_id) > _ANSWER_IDS:
                self._by_id.popitem(last=False)

    def _new(self, where: Where, line: int) -> LoggedRequest:
        models = self._of(where)
        models.served = True
        target, draft = models.pair()
        return LoggedRequest(line, target, draft)

    def _of(self, where: Where) -> _Models:
        models = self._models.setdefault(where.process, _Models())
        self._models.move_to_end(where.process)
        while len(self._models) > _MAX_PROCESSES:
            self._models.popitem(last=False)
        return models

    def _pend(self, where: Where, request: LoggedRequest) -> None:
        self._pending[where] = request
        self._pending.move_to_end(where)
        while len(self._pending) > _MAX_PENDING:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._add(self._pending.popitem(last=False)[1])

    def _add(self, request: LoggedRequest) -> int:
        """Its index; one that was told before with the very same times is that one."""
        key = _times(request)
        known = self._by_times.get(key) if request.predicted_n is not None else None
        if known is not None:
            self._found[known] = _merged(self._found[known], request)
            return known
        if len(self._found) >= MAX_REQUESTS:
            raise InputError(f"more than {MAX_REQUESTS:,} requests in one log", hint="split it")
        self._found.append(request)
        if request.predicted_n is not None:
            self._by_times[key] = len(self._found) - 1
        return len(self._found) - 1


def _times(request: LoggedRequest) -> tuple[int | None, str, int | None, str]:
    """What text and JSON tell alike, to the hundredth of a millisecond."""
    prompt_ms, predicted_ms = request.prompt_ms, request.predicted_ms
    return (
        request.prompt_n,
        f"{prompt_ms:.2f}" if prompt_ms is not None else "",
        request.predicted_n,
        f"{predicted_ms:.2f}" if predicted_ms is not None else "",
    )


def _merged(first: LoggedRequest, second: LoggedRequest) -> LoggedRequest:
    """``first``, with what only ``second`` knows."""
    known = {
        name: getattr(second, name)
        for name in ("target", "draft", "prompt_n", "prompt_ms", "drafted", "accepted")
        if getattr(first, name) is None
    }
    return replace(
        first,
        **known,
        line=min(first.line, second.line),
        told_tokens_per_s=first.told_tokens_per_s or second.told_tokens_per_s,
        by_depth=first.by_depth or second.by_depth,
    )
