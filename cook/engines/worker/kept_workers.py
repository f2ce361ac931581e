"""Workers that stay between steps, so that the weights of a model are read once.

A target of hundreds of gigabytes takes minutes to read. So a worker that a step is done with waits,
loaded, for the next step that wants the same weights: with another context if need be, which is
made again each time. Those that wait give way, the one that waited longest first, to whatever needs
their memory. One without a model waits, too: a candidate of a few tensors is quantized in hardly
more than the time that a worker takes to start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.process.system import anonymous_bytes, forget_peak_rss
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.provenance import available_memory_bytes

if TYPE_CHECKING:
    from cook.engines.worker.messages import ModelInfo, ModelLoad
    from cook.engines.worker.worker import Worker

FREE_SHARE = 0.9
"""Of the memory that was available at first, what models may take together."""


@dataclass(frozen=True)
class _Kept:
    """A worker with the model file that it holds, if any."""

    worker: Worker
    path: Path = Path()
    file_bytes: int = 0
    on_device: bool = False


class KeptWorkers(Closing):
    """Loaded workers by engine and weights. Safe to use from threads.

    They run under one :class:`Supervisor`, as no step's own outlives the step.
    """

    def __init__(self, log_dir: Path) -> None:
        self._supervisor = Supervisor(log_dir)
        self._waiting: dict[tuple[str, str], _Kept] = {}
        """By engine and weights, the one that waited longest first."""
        self._lock = threading.Lock()
        self._capacity = available_memory_bytes()

    @contextmanager
    def loaded(
        self,
        engine: Engine,
        load: ModelLoad,
        timeout_s: float = 3600.0,
        *,
        place: str | None = None,
    ) -> Iterator[tuple[Worker, ModelInfo]]:
        """A worker of ``engine`` with the model of ``load``, for the time of the block.

        ``place``: models of one place that are not used again take each other's worker, so that
        one waits for all of them; None: each waits with its own. ``timeout_s`` bounds every
        request but the loading. One that fails is ended; errors are those of :meth:`Worker.open`
        and :meth:`Worker.load`.
        """
        from cook.engines.worker.worker import Worker

        key = engine.identity.digest, place or load.weights
        with self._lock:
            kept = self._waiting.pop(key, None)
        if kept is not None and place is None:
            file_bytes = kept.file_bytes
        else:
            file_bytes = read_gguf(load.path).file_bytes
        if kept is None:
            self.make_room({load.path: file_bytes})
        worker = kept.worker if kept is not None else Worker.open(engine, self._supervisor)
        try:
            info = self._load(worker, load)
        except StepError:
            if kept is None and not self._waiting:
                raise
            # All together may not fit, since what a device holds is not known before; or the one
            # that waited has died.
            self.close()
            worker = Worker.open(engine, self._supervisor)
            info = self._load(worker, load)
        usual_s, worker.timeout_s = worker.timeout_s, timeout_s
        kept = _Kept(worker, load.path, file_bytes, info.on_device)
        with self._lent(key, kept):
            yield worker, info
            worker.timeout_s = usual_s

    @contextmanager
    def unloaded(self, engine: Engine) -> Iterator[Worker]:
        """A worker of ``engine`` that has loaded no model, for the time of the block; its peak
        memory is that of the block alone.

        One that fails is ended; errors are those of :meth:`Worker.open`.
        """
        from cook.engines.worker.worker import Worker

        key = engine.identity.digest, ""
        with self._lock:
            kept = self._waiting.pop(key, None)
        if kept is not None and (kept.worker.gone or not forget_peak_rss(kept.worker.pid)):
            kept.worker.close()
            kept = None
        if kept is None:
            kept = _Kept(Worker.open(engine, self._supervisor, name="quantize"))
        with self._lent(key, kept):
            yield kept.worker

    @contextmanager
    def _lent(self, key: tuple[str, str], kept: _Kept) -> Iterator[None]:
        """It waits after the block, unless it failed in it."""
        try:
            yield
        except BaseException:
            kept.worker.close()
            raise
        if kept.worker.gone:
            return
        with self._lock:
            earlier = self._waiting.pop(key, None)  # another step's, side by side with this one
            self._waiting[key] = kept
        if earlier is not None:
            earlier.worker.close()

    def make_room(self, files: Mapping[Path, int], *, devices: bool = False) -> None:
        """End those that wait until ``files``, with their bytes, fit into memory with the rest.

        ``devices``: and all of which a part lies on an accelerator, whose free memory is
        not known.
        """
        with self._lock:
            if devices:
                for key in [k for k, w in self._waiting.items() if w.on_device]:
                    self._waiting.pop(key).worker.close()
            while self._waiting:
                # A file that several map lies in memory once. The system only lends what it takes:
                # it counts as available, and is read from the disk again where it was taken away.
                every = {**files, **{w.path: w.file_bytes for w in self._waiting.values()}}
                own = sum(anonymous_bytes(w.worker.pid) for w in self._waiting.values())
                taken = sum(every.values()) + own
                if self._capacity is not None and taken <= FREE_SHARE * self._capacity:
                    break
                self._waiting.pop(next(iter(self._waiting))).worker.close()

    def cancel(self, *, now: bool = False) -> None:
        """End every worker, waiting or not, and refuse new ones (see :meth:`Supervisor.cancel`)."""
        self._supervisor.cancel(now=now)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            for kept in self._waiting.values():
                kept.worker.close()
            self._waiting.clear()

    def _load(self, worker: Worker, load: ModelLoad) -> ModelInfo:
        try:
            return worker.load(load)
        except BaseException:
            worker.close()
            raise
