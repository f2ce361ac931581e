"""The pipe to a worker process: frames out, frames in, and how it died.

A frame is ``COOK``, u32 header bytes, u64 payload bytes, a flat JSON header, a payload of
little-endian arrays one after another; ``worker.c`` describes the two headers.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from cook.engines.outcome import signal_name, tail
from cook.engines.process import ProcessSpec, Running, Supervisor
from cook.errors import InputError, InternalError, StepError

_FRAME = struct.Struct("<4sIQ")
_MAX_HEADER, _MAX_PAYLOAD = 1 << 20, 1 << 31
_TYPES: dict[str, np.dtype[Any]] = {
    "i4": np.dtype("<i4"),
    "i8": np.dtype("<i8"),
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
    "u1": np.dtype("u1"),
}

Arrays = dict[str, np.ndarray[Any, Any]]


class WorkerPipe:
    """A running worker program; every failure to answer ends it and is a StepError."""

    def __init__(
        self, program: Path, supervisor: Supervisor, env: Mapping[str, str], name: str
    ) -> None:
        # An idle worker is silent and uses no processor: requests have time-outs, the process none.
        spec = ProcessSpec((str(program),), name, env, stall_timeout_s=None, pipes=True)
        self._running: Running = supervisor.start(spec)
        self._broken = False

    @property
    def pid(self) -> int:
        return self._running.pid

    def close(self) -> None:
        """End the process (its whole group)."""
        for pipe in (self._running.stdin, self._running.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._broken = True
        self._running.stop()

    def request(
        self,
        op: str,
        fields: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        timeout_s: float,
    ) -> tuple[dict[str, Any], Arrays]:
        """The reply's header and its arrays (read-only). StepError: refused, died, or too late."""
        if self._broken:
            raise StepError("the worker is gone", log=self._running.stderr_log)
        header: dict[str, Any] = {"op": op, **fields}
        payload = bytearray()
        for name, array in arrays.items():
            header[f"{name}@"], header[f"{name}#"] = len(payload), array.size
            payload += array.tobytes()
        text = json.dumps(header, ensure_ascii=False).encode()
        if len(text) > _MAX_HEADER or len(payload) > _MAX_PAYLOAD:
            raise InputError(f"a request of {len(payload)} bytes is too large for the worker")
        deadline = time.monotonic() + timeout_s
        try:
            self._write(_FRAME.pack(b"COOK", len(text), len(payload)) + text + bytes(payload))
            magic, n_head, n_body = _FRAME.unpack(self._read(_FRAME.size, op, deadline))
            if magic != b"COOK" or n_head > _MAX_HEADER or n_body > _MAX_PAYLOAD:
                raise StepError(f"worker: {op}: the reply is not a frame", log=self._log)
            reply: dict[str, Any] = json.loads(self._read(n_head, op, deadline))
            body = self._read(n_body, op, deadline)
        except BaseException:
            self._broken = True
            self._running.stop()
            raise
        if not reply["ok"]:
            raise StepError(f"worker: {op}: {reply['error']}", log=self._log)
        return reply, _unpack(reply["arrays"], body)

    @property
    def _log(self) -> Path:
        return self._running.stderr_log

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        fd = _pipe(self._running.stdin).fileno()
        try:
            while view:
                view = view[os.write(fd, view) :]
        except BrokenPipeError:
            raise self._died("request") from None

    def _read(self, n: int, op: str, deadline: float) -> bytes:
        fd = _pipe(self._running.stdout).fileno()
        data = bytearray()
        while len(data) < n:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], min(left, 3600.0))[0]:
                raise StepError(f"worker: {op}: no answer in time, stopped", log=self._log)
            chunk = os.read(fd, min(n - len(data), 1 << 20))
            if not chunk:
                raise self._died(op)
            data += chunk
        return bytes(data)

    def _died(self, op: str) -> StepError:
        result = self._running.wait(30.0)
        code = result.returncode
        how = signal_name(code) if code < 0 else f"exit status {code}"
        told = tail(result.stderr_tail)
        return StepError(f"worker: {op}: the engine died ({how})\n{told}".rstrip(), log=self._log)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise InternalError("worker started without pipes")
    return pipe


def _unpack(listed: list[list[Any]], body: bytes) -> Arrays:
    arrays: Arrays = {}
    at = 0
    for name, kind, count in listed:
        dtype = _TYPES[kind]
        end = at + count * dtype.itemsize
        if end > len(body):
            raise StepError(f"worker: array {name!r} is cut short")
        # frombuffer on bytes is read-only, as a frozen record should be
        arrays[name] = np.frombuffer(body, dtype, count, at)
        at = end
    return arrays
