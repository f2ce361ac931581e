"""imatrix, perplexity and divergence runs, with their successes proven.

Mainline logs from a thread that nobody waits for at exit (``common_log_main`` is leaked on
purpose), so that a run which did its work can end before its last lines are printed: seen in 4
of 60 short runs on a busy machine. Such a run is repeated; nothing else is.

``llama-perplexity`` exits 0 after nearly every failure, and both tools can print ``nan``
(docs/internals/engines.md#llama-perplexity, docs/internals/engines.md#llama-imatrix):
a result needs its final line, finite, over all the chunks that the tool said it would compute,
and a file that reads back where one was asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cook.engines import tool_output
from cook.engines.base import (
    DivergenceJob,
    DivergenceResult,
    ImatrixJob,
    ImatrixResult,
    PerplexityJob,
    PerplexityResult,
)
from cook.engines.process.outcome import Outcome, ProcessResult, failure
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import Meter
from cook.errors import CookError, InputError
from cook.files import publish, temporary_beside
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from cook.engines.tools import Tools

_ATTEMPTS = 4
_TOO_SHORT = re.compile(r"you need at least \d+ tokens[^\n]*|the data file you provided[^\n]*")
_HEAP = re.compile(
    r"malloc assertion|(?:malloc|free|realloc|munmap_chunk)\w*\(\): |corrupted|double free"
)
_BROKEN_BASE = re.compile(
    r"inconsistent vocabulary \([^)\n]*\)|failed reading (?:log-probs|header|tokens|[^\n]{0,60})"
    r"|failed to open[^\n]{0,200}|base file[^\n]{0,200}mismatch[^\n]{0,80}"
)


def run_imatrix(engine: Tools, job: ImatrixJob, supervisor: Supervisor) -> ImatrixResult:
    """Collect an imatrix into ``job.output``: GGUF on mainline, legacy .dat on ik.

    ik's kernels are known to write where they may not here, which ends in a segmentation fault or
    in the C library's complaint about its heap: its retries run without them, with a warning.
    """
    _need(job.model, job.corpus)
    warnings: list[str] = []
    with temporary_beside(job.output) as partial:
        attempt = dataclasses.replace(job, output=partial)
        for extra in ((), *engine.imatrix_retries()):
            tried = dataclasses.replace(attempt, args=(*job.args, *extra))
            command = engine.imatrix_command(tried)
            result = _run(engine, supervisor, command, f"imatrix-{job.model.stem}", job.output)
            if not _overran(result):
                break
            ended = "hung" if result.outcome is Outcome.STALLED else "crashed"
            warnings.append(f"llama-imatrix {ended} with {' '.join(extra) or 'its defaults'}")
        result.check()
        err, out = _texts(result)
        _refuse_not_finite(result, err, out)
        if short := _TOO_SHORT.search(err):
            raise failure(result, Outcome.TOOL_ERROR, short.group(), "give it a longer corpus")
        if not partial.is_file() or partial.stat().st_size < 16:
            raise failure(result, Outcome.SILENT_FAILURE, "it wrote no imatrix")
        chunks = _imatrix_chunks(engine, partial, result)
        if engine.flavour is Flavour.IK_LLAMA_CPP:
            # ik's trailer counts differently (8 for 4 chunks), and its log is complete; of
            # mainline's log the last lines may be lost, so there the file's own count holds.
            chunks = tool_output.parse_chunks(out) or tool_output.parse_planned_chunks(err) or 0
        estimate = tool_output.parse_final_estimate(out) or tool_output.parse_final_estimate(err)
        planned = tool_output.parse_planned_chunks(err)
        if planned is not None and chunks == planned - 1 and estimate is not None:
            # Mainline counts tokens: a last batch of three chunks is cut into pieces of 510, and
            # the 6 that are left are too few for it to collect (below 16, llama-imatrix).
            chunks = planned
        if chunks < (planned or 1):
            told = f"it computed {chunks} of {planned or 'the'} chunks"
            raise failure(result, Outcome.SILENT_FAILURE, told)
        publish(partial, job.output)
    if warnings:
        warnings.append(f"it was collected with {' '.join(extra)}")
    if job.chunks is not None and chunks < job.chunks:
        warnings.append(f"the corpus has only {chunks} chunks of {job.context} tokens")
    return ImatrixResult(
        chunks=chunks,
        perplexity=estimate.value if estimate else None,
        perplexity_error=estimate.error if estimate else None,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=engine.imatrix_command(dataclasses.replace(job, args=(*job.args, *extra))),
        warnings=(
            *warnings,
            *tool_output.parse_imatrix_warnings(tool_output.without_prefixes(err)),
        ),
    )


def _overran(result: ProcessResult) -> bool:
    """Whether the run ended as one does that wrote beyond its memory.

    A broken heap can also hang: the C library waits for a lock that nobody holds.
    """
    if result.outcome is Outcome.STALLED:
        return True
    aborted = result.returncode == -signal.SIGABRT and _HEAP.search(result.stderr_tail)
    broke = result.returncode == -signal.SIGSEGV or bool(aborted)
    return broke and result.outcome is Outcome.CRASH


def run_perplexity(engine: Tools, job: PerplexityJob, supervisor: Supervisor) -> PerplexityResult:
    """Perplexity over ``job.corpus``; the base-logits file too where ``job.save_base`` is set."""
    _need(job.model, job.corpus)
    keep = temporary_beside(job.save_base) if job.save_base else contextlib.nullcontext()
    with keep as partial:
        command = engine.perplexity_command(dataclasses.replace(job, save_base=partial))
        name = f"perplexity-{job.model.stem}"
        result = _run_to_last_line(
            engine, supervisor, command, name, job.save_base, "Final estimate: PPL"
        )
        err, out = _texts(result)
        _refuse_not_finite(result, err, out)
        if short := _TOO_SHORT.search(err):
            raise failure(result, Outcome.TOOL_ERROR, short.group(), "give it a longer corpus")
        estimate = tool_output.parse_final_estimate(err) or tool_output.parse_final_estimate(out)
        chunks, planned = tool_output.parse_chunks(out), tool_output.parse_planned_chunks(err)
        if estimate is None:
            raise failure(result, Outcome.SILENT_FAILURE, "its final estimate is missing")
        if chunks is None or (planned is not None and chunks != planned):
            told = f"it computed {chunks or 0} of {planned or '?'} chunks"
            raise failure(result, Outcome.SILENT_FAILURE, told)
        if job.save_base is not None and partial is not None:
            _check_base(partial, result, chunks)
            publish(partial, job.save_base)
    return PerplexityResult(
        perplexity=estimate.value,
        error=estimate.error,
        chunks=chunks,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=engine.perplexity_command(job),
    )


def run_divergence(engine: Tools, job: DivergenceJob, supervisor: Supervisor) -> DivergenceResult:
    """Compare ``job.model`` with the logits in ``job.base``.

    The engine goes on after a vocabulary mismatch and after a short base file; cook does not.
    """
    from cook.formats.kld_base import read_base_header

    _need(job.model)
    base = read_base_header(job.base)
    if not base.complete:
        told = f"{base.file_bytes} of {base.expected_bytes} bytes"
        raise InputError(f"{job.base} is incomplete: {told}", hint="make it again")
    if base.context != job.context:
        raise InputError(f"{job.base} was made with context {base.context}, not {job.context}")
    command = engine.divergence_command(job)
    name = f"divergence-{job.model.stem}"
    result = _run_to_last_line(engine, supervisor, command, name, None, "Same top p:")
    err, out = _texts(result)
    if broken := _BROKEN_BASE.search(err) or _BROKEN_BASE.search(out):
        hint = "the base was made from a model with another vocabulary"
        raise failure(result, Outcome.TOOL_ERROR, broken.group(), hint)
    _refuse_not_finite(result, err, out)
    values = tool_output.parse_divergence(out)
    chunks = tool_output.parse_divergence_chunks(out)
    if values is None:
        told = "its statistics are missing or not finite (they need 100 tokens)"
        raise failure(result, Outcome.SILENT_FAILURE, told)
    if chunks != base.chunks:
        told = f"it compared {chunks or 0} of {base.chunks} chunks"
        raise failure(result, Outcome.SILENT_FAILURE, told)
    ratio_error = values.pop("perplexity_ratio_error", None)
    return DivergenceResult(
        **values,
        perplexity_ratio_error=ratio_error,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=command,
    )


def _run(
    engine: Tools, supervisor: Supervisor, command: tuple[str, ...], name: str, out: Path | None
) -> ProcessResult:
    writes = (out.parent,) if out is not None else ()
    return engine.run(supervisor, command, name, writes=writes, on_output=Meter(supervisor))


def _run_to_last_line(
    engine: Tools,
    supervisor: Supervisor,
    command: tuple[str, ...],
    name: str,
    out: Path | None,
    last_line: str,
) -> ProcessResult:
    def told(result: ProcessResult) -> bool:
        said = result.stderr_tail + "\n" + result.stdout_tail
        complaint = (
            tool_output.not_finite(said) or _TOO_SHORT.search(said) or _BROKEN_BASE.search(said)
        )
        return last_line in said or bool(complaint)

    def run() -> ProcessResult:
        return _run(engine, supervisor, command, name, out).check()

    return until_told(engine, run, told)


def until_told(
    engine: Tools, run: Callable[[], ProcessResult], told: Callable[[ProcessResult], bool]
) -> ProcessResult:
    """Run; again, where mainline exited 0 without its last line and without a complaint."""
    for _ in range(_ATTEMPTS - 1):
        result = run()
        if engine.flavour is not Flavour.LLAMA_CPP or told(result):
            return result
    return run()


def _texts(result: ProcessResult) -> tuple[str, str]:
    err = result.stderr.read_text(encoding="utf-8", errors="replace")
    out = result.stdout.read_text(encoding="utf-8", errors="replace")
    return err, out


def _need(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} does not exist")


def _refuse_not_finite(result: ProcessResult, err: str, out: str) -> None:
    if sign := tool_output.not_finite(err) or tool_output.not_finite(out):
        raise failure(
            result,
            Outcome.SILENT_FAILURE,
            f"the computation is not finite: {sign}",
            "a tensor is broken: quantize it to another type, or check the source",
        )


def _imatrix_chunks(engine: Tools, path: Path, result: ProcessResult) -> int:
    """Chunks that the written imatrix covers; the failure where it is none, or empty."""
    from cook.formats.imatrix_file import read_imatrix

    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if is_gguf != (engine.flavour is Flavour.LLAMA_CPP):
        raise failure(result, Outcome.SILENT_FAILURE, "the imatrix is not of the engine's format")
    try:
        imatrix = read_imatrix(path)
    except CookError as error:
        raise failure(result, Outcome.SILENT_FAILURE, error.message) from None
    if not imatrix.entries:
        raise failure(result, Outcome.SILENT_FAILURE, "the imatrix has no entries")
    return imatrix.chunk_count


def _check_base(path: Path, result: ProcessResult, chunks: int) -> None:
    from cook.formats.kld_base import read_base_header

    try:
        base = read_base_header(path)
    except CookError as error:
        raise failure(result, Outcome.SILENT_FAILURE, error.message) from None
    if not base.complete or base.chunks != chunks:
        told = f"the base file has {base.file_bytes} of {base.expected_bytes} bytes"
        raise failure(result, Outcome.SILENT_FAILURE, told)
