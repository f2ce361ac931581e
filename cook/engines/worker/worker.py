"""Client of the worker: what a model says at every position of a text, as arrays.

One :class:`Worker` is one process (``worker.c``) with one model. Its replies are frozen records
of numpy arrays. A crash of the engine, a hang or a refusal is a StepError; the process group is
killed and this process is unharmed. All log-probabilities are natural logarithms.

The two talk in frames over pipes: ``COOK``, u32 header bytes, u64 payload bytes, a flat JSON
header, a payload of little-endian arrays one after another; ``worker.c`` describes the two headers.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cook.closing import Closing
from cook.engines.base import DraftSettings, Engine, contradictions
from cook.engines.process.outcome import ProcessSpec, signal_name, tail, tells_of_full_disk
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import parse_buffers
from cook.engines.worker.compile import build_worker, locate
from cook.engines.worker.loading import few_rows
from cook.engines.worker.messages import (
    DecodeTimes,
    Divergence,
    FirstDrafts,
    Generation,
    HeadReplay,
    LiveCycles,
    ModelInfo,
    ModelLoad,
    Replay,
    Rollouts,
    RowsOfTensor,
)
from cook.errors import InternalError, StepError
from cook.formats.arrays import Floats32, Ids
from cook.formats.imatrix_file import ImatrixEntry
from cook.formats.sampling import Sampling

Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]
Arrays = dict[str, np.ndarray[Any, Any]]
_LOAD_LOG_BYTES = 1 << 20
_AT_ONCE = 1 << 26
"""Weights that one request quantizes: a minute or so of the slowest types."""
_FRAME = struct.Struct("<4sIQ")


class Worker(Closing):
    """A worker process; a context manager. Not safe for use by two threads at once.

    ``timeout_s`` bounds every request; ``Worker.open`` builds (or finds) the program of an engine.
    ``gone``: it has ended, closed or broken by a request.
    """

    def __init__(
        self, program: Path, supervisor: Supervisor, env: Mapping[str, str], *, name: str = "worker"
    ) -> None:
        self.timeout_s = 3600.0
        self.gone = False
        self._loaded_at = 0
        """Where the log has the weights that are loaded."""
        # An idle worker is silent and uses no processor: requests have time-outs, the process none.
        spec = ProcessSpec((str(program),), name, env, stall_timeout_s=None, pipes=True)
        self._running = supervisor.start(spec)
        self.pid, self.log = self._running.pid, self._running.stderr_log
        assert self._running.stdin is not None, "asked for"
        assert self._running.stdout is not None, "asked for"
        self._to, self._from = self._running.stdin, self._running.stdout
        try:
            hello, _ = self._request("hello", timeout_s=60.0)
        except BaseException:
            self.close()
            raise
        self.parameters = frozenset(hello["parameters"])
        self._flavour: str = hello["flavour"]

    @classmethod
    def open(cls, engine: Engine, supervisor: Supervisor, *, name: str = "worker") -> Worker:
        """A worker of ``engine``, compiled first if need be.

        PrerequisiteError without a compiler, headers or shared libraries; StepError if it does
        not compile or the engine's headers and library disagree.
        """
        return cls(build_worker(locate(engine)), supervisor, engine.environment(), name=name)

    def close(self) -> None:
        """End the process (its whole group)."""
        self.gone = True
        self._to.close()
        self._from.close()
        self._running.stop()

    def load(self, model: ModelLoad, *, carry: bool = False, onto: bool = False) -> ModelInfo:
        """Load a model, make its context, and check that its logits are numbers.

        What was loaded before is replaced; where that has the same weights, by its context alone.
        ``carry``: that then takes over what :meth:`read` or :meth:`time_batch` left in the KV
        cache, which lies in memory twice for that time (mainline only). ``onto``: a head, next to
        its target, which was loaded before and stays until what is loaded next is no head.
        """
        before = self.log.stat().st_size
        parameters: dict[str, Any] = {p.name: p.value for p in model.known_to(self.parameters)}
        loaded, _ = self._request(
            "load",
            path=str(model.path.absolute()),  # the worker has its own directory
            weights=model.weights,
            n_ctx=model.context,
            n_batch=model.batch,
            n_ubatch=model.ubatch,
            threads=model.threads,
            threads_batch=model.threads_batch or model.threads,
            vocab_only=model.vocabulary_only,
            rows=model.gives_rows or None,
            collects=model.collects or None,
            few_rows=few_rows(model.path, self._flavour) if not model.vocabulary_only else None,
            **parameters,
            overrides="\n".join(model.overrides) or None,
            tensor_split=model.tensor_split or None,
            devices=",".join(model.devices) or None,
            numa=model.numa or None,
            carry=carry or None,
            onto=onto or None,
        )
        if not loaded["known"]:
            self._loaded_at = before
        if not model.vocabulary_only:
            asked = {
                "ctx": model.context,
                "batch": model.batch,
                "ubatch": model.ubatch,
                "threads": model.threads,
                "threads_batch": model.threads_batch or model.threads,
            }
            ran = {name: loaded[f"n_{name}"] for name in asked}
            if others := tuple(contradictions(ran, asked)):
                raise StepError(f"worker: {model.path.name} runs with {', '.join(others)}")
        with self.log.open("rb") as stream:
            stream.seek(self._loaded_at)
            log = stream.read(_LOAD_LOG_BYTES)
        info, arrays = self._request("info")
        return _record(
            ModelInfo,
            info,
            bos=info["bos"] if info["bos"] >= 0 else None,
            eog=frozenset(arrays["eog"].tolist()),
            context=loaded["n_ctx"],
            context_train=info["n_ctx_train"],
            carried=loaded["carried"],
            # That a layer is called offloaded says nothing: builds without a device do so, too.
            on_device=parse_buffers(log)[1] > 0,
            library=loaded["parameters"],
        )

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Token ids of ``text`` (``add_special``: BOS and EOS where the model asks for them)."""
        data = text.encode()
        words = np.frombuffer(data + b"\0" * (-len(data) % 4), "<i4")
        _, arrays = self._request(
            "tokenize",
            {"text": words},
            bytes=len(data),
            add_special=add_special,
            parse_special=parse_special,
        )
        return tuple(arrays["tokens"].tolist())

    def detokenize(self, tokens: Tokens, *, special: bool = True) -> str:
        """Text of ``tokens``; incomplete UTF-8 becomes U+FFFD."""
        _, arrays = self._request("detokenize", {"tokens": tokens}, special=special)
        return arrays["text"].tobytes().decode(errors="replace")

    def replay(
        self,
        prompt: Tokens,
        emitted: Tokens,
        *,
        width: int | None = None,
        ahead: int = 0,
        top: int = 0,
        temperature: float | None = None,
        reference: tuple[Ids, Floats32] | None = None,
        rollout_steps: int = 0,
        rollout_stop_below: float = 0.0,
    ) -> Replay:
        """One teacher-forced pass; entry i of every array is about ``emitted[i]``.

        The prompt is read in whole batches, as a server reads it, the reply in batches of ``width``
        (default: as many as are computed like a server's few; 1 decodes singly); with ``ahead``, so
        much of the prompt, which the next request that shares it does not read again.
        ``temperature`` also gives the log-probability of the emitted token at that temperature.
        ``reference``: the trace's top-K (ids, raw log-probs), [positions, K], id -1 = absent; it
        gives the divergence. ``rollout_steps`` > 0 drafts on after each mismatch (first position
        excepted, which is never drafted), until a confidence falls below ``rollout_stop_below``.
        """
        n = len(emitted)
        arrays: dict[str, npt.ArrayLike] = {"prompt": prompt, "emitted": emitted}
        if reference is not None:
            ids, logp = reference
            if ids.shape != logp.shape or ids.ndim != 2 or len(ids) != n:
                raise InternalError(f"reference {ids.shape}, {logp.shape} for {n} tokens")
            arrays |= {"reference_ids": ids, "reference_logp": logp}
        head, got = self._request(
            "replay",
            arrays,
            top=top,
            rollout_steps=rollout_steps,
            rollout_stop_below=rollout_stop_below,
            width=width,
            ahead=ahead or None,
            temperature=temperature if temperature and temperature > 0 else None,
        )
        rows = got["reference"].reshape(n, 4).T if reference else None
        rollouts = None
        if rollout_steps:
            shape = len(got["rollout_position"]), rollout_steps
            rollouts = Rollouts(
                position=got["rollout_position"],
                length=got["rollout_length"],
                tokens=got["rollout_tokens"].reshape(shape),
                confidence=got["rollout_confidence"].reshape(shape),
                tail_tokens=got["tail_tokens"],
                tail_confidence=got["tail_confidence"],
            )
        return _record(
            Replay,
            head,
            got,
            **_candidates(got, n, top),
            divergence=Divergence(*rows) if rows is not None else None,
            rollouts=rollouts,
        )

    def rows(self, prompt: Tokens, emitted: Tokens, known: Floats32 | None = None) -> Floats32:
        """The hidden states [prompt + emitted - 1, size] of this target, or the one that a head is
        loaded next to, which its heads read, as :meth:`replay` reads the two. ``known``: those of
        the prompt, which :meth:`live_shapes_head` has just read."""
        text = [*prompt, *emitted[:-1]]
        read = 0 if known is None else len(known)
        _, got = self._request("rows", {"text": text}, prompt=len(prompt), known=read)
        if known is None:
            return got["rows"].reshape(len(text), -1)
        return np.concatenate([known, got["rows"].reshape(-1, known.shape[1])])

    def replay_head(
        self,
        prompt: Tokens,
        emitted: Tokens,
        rows: Floats32,
        *,
        before: Floats32 | None = None,
        depth: int,
        floor: float = 0.0,
        known: HeadReplay | None = None,
    ) -> HeadReplay:
        """Every draft of up to ``depth`` tokens that the loaded head begins in a reply.

        ``rows`` [prompt + emitted - 1, size]: the target's hidden states. ``before``: the row that
        the request before left in the server, None for its first. ``floor`` > 0 goes on to a
        confidence below that, as p_min needs, and else to the first wrong token. ``known``, such a
        replay without a floor: its batches are decoded bare, with nothing taken of the results.
        """
        arrays: dict[str, npt.ArrayLike] = {"prompt": prompt, "emitted": emitted, "rows": rows}
        if before is not None:
            arrays["before"] = before
        if known is not None:
            arrays["known"] = known.tokens
        head, got = self._request("replay_head", arrays, depth=depth, floor=floor or None)
        shaped = {name: values.reshape(len(emitted), depth) for name, values in got.items()}
        return _record(HeadReplay, head, shaped)

    def collect(self, text: Tokens, rows: Floats32, *, output: bool = False) -> None:
        """Add what goes into the matrices of the loaded head, which reads ``text`` with the
        target's ``rows`` [text, size] of it; ``output``: into the output's as well."""
        self._request("collect", {"text": text, "rows": rows}, output=output or None)

    def importance(self) -> dict[str, ImatrixEntry]:
        """All that was collected since the head was loaded, by the matrix's name."""
        head, got = self._request("importance")
        found, at, counted = {}, 0, 0
        for name, size, count in head["entries"]:
            sums = got["sums"][at : at + size].reshape(count, -1)
            found[name] = ImatrixEntry(sums, got["counts"][counted : counted + count])
            at, counted = at + size, counted + count
        return found

    def bare(self, prompt: Tokens, emitted: Tokens, *, width: int | None = None) -> int:
        """Nanoseconds of the bare ``llama_decode`` calls of a :meth:`replay`: the same batches and
        logits mask with nothing reduced."""
        arrays = {"prompt": prompt, "emitted": emitted}
        head, _ = self._request("replay", arrays, bare=True, width=width)
        return int(head["decode_ns"])

    def live_shapes(
        self,
        prompt: Tokens,
        emitted: Tokens,
        *,
        profile: str,
        n_max: int,
        n_min: int = 0,
        p_min: float = 0.0,
        n_predict: int | None = None,
        server_context: int | None = None,
        width: int | None = None,
    ) -> LiveCycles:
        """Drive this model as draft exactly as the server of ``profile`` does.

        docs/internals/scoring.md#accounting

        ``emitted`` is what the target wrote; ``n_predict`` the request's limit (default: its
        length); ``server_context`` the server's slot context; ``width`` its batch size.
        """
        head, got = self._request(
            "live_shapes",
            {"prompt": prompt, "emitted": emitted},
            profile=profile,
            n_max=n_max,
            n_min=n_min,
            p_min=p_min,
            n_predict=n_predict if n_predict is not None else len(emitted),
            server_ctx=server_context,
            width=width,
        )
        return _record(LiveCycles, head, got)

    def live_shapes_head(
        self,
        prompt: Tokens,
        emitted: Tokens,
        *,
        before: Floats32 | None = None,
        settings: DraftSettings,
        n_predict: int,
        server_context: int,
        first: FirstDrafts | None = None,
    ) -> tuple[tuple[int, int], Floats32, Floats32]:
        """(drafted, accepted) tokens of the head that is loaded next to its target, driven as
        mainline's server does; the rows of the prompt; and the row that this request leaves, which
        is ``before`` (see :meth:`replay_head`) of the next. ``first`` drafts before the head.
        """
        asked: dict[str, npt.ArrayLike] = {"prompt": prompt}
        if before is not None:
            asked["before"] = before
        rows = self._request("begin_head", asked)[1]["rows"].reshape(len(prompt), -1)
        row = rows[-1]
        drafted = accepted = 0
        i = 1
        while i < len(emitted):
            past = len(prompt) + i - 1  # where the last emitted token is
            room = max(0, min(server_context - past - 2, n_predict - i - 1))
            said = first.tokens(i, room) if first is not None and room else []
            head, got = self._request(
                "step_head",
                {"text": emitted[i - 1 :], "first": said, "before": row},
                **asdict(settings),
                past=past,
                room=room,
            )
            row, count, right = got["row"], head["draft_n"], head["draft_n_accepted"]
            if said and first is not None:
                first.accept(right)
            drafted, accepted, i = drafted + count, accepted + right, i + right + 1
        return (drafted, accepted), rows, row

    def generate(
        self,
        prompt: Tokens,
        *,
        n_predict: int,
        chain: Sampling | None = None,
        top: int = 0,
        extra: int = 0,
        width: int = 1,
    ) -> Generation:
        """Write on from ``prompt``, a token a step; ``extra`` tokens beyond an end of reply.

        ``chain`` None is greedy; one that is given leaves nothing to the engine. ``width``: tokens
        of a step's batch, of which all but the first are dropped again; more than one only of
        models without a recurrent state.
        """
        head, got = self._request(
            "generate",
            {"prompt": prompt},
            n_predict=n_predict,
            top=top,
            extra=extra,
            width=width,
            **(chain.worker_fields() if chain is not None else {}),
        )
        return _record(Generation, head, got, **_candidates(got, len(got["tokens"]), top))

    def read(self, text: Tokens, known: int = 0) -> float:
        """Read ``text`` as a prompt is read; seconds of what follows its first ``known`` tokens.

        Those are not read again where this or :meth:`time_batch` has just left them.
        """
        head, _ = self._request("read", {"text": text}, known=known)
        return float(head["read_ns"] / 1e9)

    def time_batch(
        self,
        text: Tokens,
        *,
        depth: int,
        tokens: int,
        repeats: int,
        all_outputs: bool,
        sample_k: int = 0,
        singles: int = 0,
        sweep_bytes: int = 0,
    ) -> DecodeTimes:
        """Time one batch of ``tokens`` tokens of ``text`` at position ``depth``, ``repeats`` times.

        ``all_outputs``: logits for every token (a target verifying), else for the last (a draft,
        or a prompt). ``sample_k`` > 0 also times the engine's top-k sampler on each output.
        ``singles`` decodes of one token each follow within the time; before each repeat so many
        bytes of other memory are read, as a draft's target reads its weights.
        """
        _, got = self._request(
            "time",
            {"text": text},
            depth=depth,
            tokens=tokens,
            repeats=repeats,
            all_outputs=all_outputs,
            sample_k=sample_k,
            singles=singles,
            sweep=sweep_bytes,
        )
        return _record(DecodeTimes, got)

    def time_slots(
        self,
        before: Sequence[Tokens],
        following: Sequence[Tokens],
        *,
        sequences: int,
        repeats: int,
        all_outputs: bool,
    ) -> tuple[int, ...]:
        """Nanoseconds of one batch of the first ``sequences`` slots together, each repeat's.

        ``before`` [slots][depth] is what each slot holds, ``following`` [slots][tokens] what the
        batch has of it; ``all_outputs`` as in :meth:`time_batch`. The model was loaded for so many
        ``slots``.
        """
        arrays = {
            "before": [token for text in before for token in text],
            "next": [token for text in following for token in text],
        }
        _, got = self._request(
            "time_slots",
            arrays,
            slots=len(before),
            sequences=sequences,
            repeats=repeats,
            all_outputs=all_outputs,
        )
        return tuple(got["decode_ns"].tolist())

    def quantize(
        self,
        rows: RowsOfTensor,
        to: Path,
        *,
        threads: int,
        memory_bytes: int,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Write the data of a tensor as another type, as llama-quantize makes it, into ``to``.

        Needs no model. No more than ``memory_bytes`` are in use, but for one chunk of rows, however
        large the tensor is; ``advance`` gets how many more of its source's bytes are done.
        StepError where the source cannot be read, or holds what is no number.
        """
        columns, matrix_rows, matrices = rows.shape[0], prod(rows.shape[1:2]), prod(rows.shape[2:])
        fields: dict[str, Any] = {
            "from": str(rows.source.path.absolute()),
            "offset": rows.source.offset,
            "source": rows.source_type.id,
            "source_interleave": rows.source_type.interleave,
            "to": str(to.absolute()),
            "type": rows.type.id,
            "columns": columns,
            "rows": matrix_rows,
            "matrices": matrices,
            "threads": threads,
            "memory": memory_bytes,
        }
        arrays = {"importance": rows.importance} if rows.importance is not None else {}
        total, some = matrix_rows * matrices, max(1, _AT_ONCE // columns)
        for first in range(0, total, some):
            end = min(first + some, total)
            try:
                self._request("quantize", arrays, **fields, first=first, end=end)
            except StepError as error:
                if not tells_of_full_disk(error.message):
                    raise
                raise StepError(
                    error.message,
                    hint="free disk space (`cook store gc` helps); the next build goes on with "
                    "what was made",
                    log=error.log,
                ) from None
            advance((end - first) * rows.source.size_bytes // total)

    def _request(
        self,
        op: str,
        arrays: Mapping[str, npt.ArrayLike] | None = None,
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> tuple[dict[str, Any], Arrays]:
        """The reply's header and its arrays (read-only); ``fields`` of None are left out.

        StepError: refused, died, or too late; the last two end the process.
        """
        if self.gone:
            raise StepError("the worker is gone", log=self.log)
        header = {"op": op} | {name: value for name, value in fields.items() if value is not None}
        payload = bytearray()
        for name, values in (arrays or {}).items():
            array = np.asarray(values)
            header[f"{name}@"], header[f"{name}#"] = len(payload), array.size
            payload += array.astype("<f4" if array.dtype.kind == "f" else "<i4").tobytes()
        text = json.dumps(header, ensure_ascii=False).encode()
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        try:
            view = memoryview(_FRAME.pack(b"COOK", len(text), len(payload)) + text + payload)
            try:
                while view:
                    view = view[os.write(self._to.fileno(), view) :]
            except BrokenPipeError:
                raise self._died("request") from None
            _, header_bytes, body_bytes = _FRAME.unpack(self._read(_FRAME.size, op, deadline))
            reply: dict[str, Any] = json.loads(self._read(header_bytes, op, deadline))
            body = self._read(body_bytes, op, deadline)
        except BaseException:
            self.close()
            raise
        if not reply["ok"]:
            raise StepError(f"worker: {op}: {reply['error']}", log=self.log)
        found: Arrays = {}
        at = 0
        for name, kind, count in reply["arrays"]:
            # Of bytes, an array is read-only, as a frozen record's should be.
            found[name] = np.frombuffer(body, f"<{kind}", count, at)
            at += found[name].nbytes
        return reply, found

    def _read(self, size: int, op: str, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], min(left_s, 3600.0))[0]:
                raise StepError(f"worker: {op}: no answer in time, stopped", log=self.log)
            chunk = os.read(self._from.fileno(), min(size - len(data), 1 << 20))
            if not chunk:
                raise self._died(op)
            data += chunk
        return bytes(data)

    def _died(self, op: str) -> StepError:
        result = self._running.wait(30.0)
        code = result.returncode
        how = signal_name(code) if code < 0 else f"exit status {code}"
        stderr = tail(result.stderr_tail)
        return StepError(f"worker: {op}: the engine died ({how})\n{stderr}".rstrip(), log=self.log)


R = TypeVar("R")


def _record(kind: type[R], *parts: Mapping[str, Any], **more: Any) -> R:
    """A ``kind`` of what the parts of a reply call by its fields' names."""
    given = {name: value for part in (*parts, more) for name, value in part.items()}
    return kind(**{name: given[name] for name in kind.__dataclass_fields__})  # type: ignore[attr-defined]


def _candidates(got: Arrays, positions: int, top: int) -> Arrays | dict[str, None]:
    """The ``top`` tokens at each position; None of each where none were asked for."""
    names = ("top_ids", "top_logits")
    if not top:
        return dict.fromkeys(names)
    return {name: got[name].reshape(positions, top) for name in names}
