"""Runs of ``llama-quantize``, ``-imatrix`` and ``-perplexity``, with their successes proven.

Either engine exits 0 after some failures (``llama-perplexity`` after nearly every one), leaves
partial files, prints ``nan`` and replaces types without a word
(docs/internals/engines.md#llama-quantize, docs/internals/engines.md#llama-imatrix,
docs/internals/engines.md#llama-perplexity). So a tool writes under a temporary name, and a result
needs the tool's last line, figures that are finite and over all the chunks that it announced, and a
file that reads back; of a quantization also the types resolved, in log and file alike. Only then is
the file synced and renamed.

Mainline logs from a thread that is not joined at exit (``common_log_main`` is leaked on
purpose), so that a run which did its work can end before its last lines are printed: seen in 4
of 60 short runs on a busy machine. A perplexity or divergence run like that is repeated; nothing
else is.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.engines import tool_output
from cook.engines.base import Engine, QuantizeJob, QuantizeResult, absolute
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, failure
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import meter
from cook.errors import CookError, InputError, StepError
from cook.files import publish, temporary_beside
from cook.formats.kld_base import read_base_header
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from cook.formats.gguf import GgufFile


# With these base types both engines ignore every rule.
_UNRULED = frozenset({"F32", "F16", "BF16", "COPY"})


def quantize(engine: Engine, job: QuantizeJob, supervisor: Supervisor) -> QuantizeResult:
    """Quantize; the output is whole and verified, or absent.

    Raises InputError for a job that no run can fulfil, StepError when the tool fails or its log or
    file disagree with ``job.expected``.
    """
    check_job(engine, job)
    with temporary_beside(job.output) as partial:
        command = engine.quantize_command(replace(job, output=partial))
        name = f"quantize-{job.output.stem}"
        result = _run(engine, supervisor, command, name, job.output).check()
        file, log = _verify(engine, job, partial, result)
        publish(partial, job.output)
    tensor_bytes = file.tensor_bytes
    if tensor_bytes is None:
        raise StepError(f"{job.output}: holds a type of unknown size", log=result.stderr)
    return QuantizeResult(
        types=log.types,
        tensor_bytes=tensor_bytes,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=engine.quantize_command(job),
        warnings=log.warnings,
    )


def check_job(engine: Engine, job: QuantizeJob) -> None:
    """InputError for a job that would fail, or worse: ik truncates its source when IN is OUT.

    Whether the engine has the types is checked before, by :mod:`cook.recipe.lint`.
    """
    if not job.source.is_file():
        raise InputError(f"{job.source} does not exist")
    if job.output.exists() and job.output.samefile(job.source):
        raise InputError(f"{job.source} would be overwritten by its own quantization")
    if job.rules and job.ftype.upper() in _UNRULED:
        raise InputError(f"base type {job.ftype} makes the engine ignore every rule")
    if job.imatrix is None:
        return
    try:
        with job.imatrix.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"imatrix {job.imatrix} cannot be read: {error.strerror}") from None
    if magic == b"GGUF" and engine.flavour is Flavour.IK_LLAMA_CPP:
        # ik does not look at the magic and aborts on its own length check.
        raise InputError(
            f"{job.imatrix} is a GGUF imatrix; ik_llama.cpp reads only the legacy .dat",
            hint="`cook inspect` shows the format; cook converts its own",
        )


def _silent(result: ProcessResult, why: str, hint: str | None = None) -> CookError:
    """The tool exited 0 and did not do its work."""
    return failure(result, Outcome.SILENT_FAILURE, why, hint)


def _verify(
    engine: Engine, job: QuantizeJob, partial: Path, result: ProcessResult
) -> tuple[GgufFile, tool_output.QuantizeLog]:
    from cook.formats.gguf import read_gguf

    if not tool_output.quantize_finished(result.stdout_tail):
        raise _silent(result, "its last line, the time it took, is missing")
    if not partial.is_file():
        raise _silent(result, "it wrote no file")
    log = tool_output.parse_quantize_log(
        result.stderr.read_text(encoding="utf-8", errors="replace")
    )
    try:
        file = read_gguf(partial)
        source = read_gguf(job.source)
    except CookError as error:
        raise _silent(result, error.message.replace(str(partial), "its output")) from None
    if len(file.tensors) != len(source.tensors):
        count = f"{len(file.tensors)} of {len(source.tensors)} tensors are in its output"
        raise _silent(result, count)
    written = {tensor.name: tensor.type_name for tensor in file.tensors}
    differences = compare(job.expected, log.types, written)
    if differences:
        more = f" (and {len(differences) - 5} more)" if len(differences) > 5 else ""
        raise StepError(
            f"{result.name}: the types written are not the types resolved{more}:\n"
            + "\n".join(f"  {line}" for line in differences[:5]),
            hint="the engine replaced or ignored a rule: please report it with the log",
            log=result.stderr,
        )
    return file, log


def compare(
    expected: Mapping[str, str], logged: Mapping[str, str], written: Mapping[str, str]
) -> tuple[str, ...]:
    """A line for every tensor whose type differs between recipe, log and file."""
    differences: list[str] = []
    for name in sorted(set(expected) | set(logged) | set(written)):
        want, log, file = expected.get(name), logged.get(name), written.get(name)
        if log is None or file is None:
            where = "log" if log is None else "file"
            differences.append(f"{name}: is not in the {where}")
        elif not same_type(log, file) or (want is not None and not same_type(want, file)):
            resolved = f"the recipe resolves to {want}, " if want is not None else ""
            differences.append(f"{name}: {resolved}the log says {log}, the file holds {file}")
    return tuple(differences)


def same_type(one: str, other: str) -> bool:
    """Whether two spellings mean one type (id 41 is q1_0 to mainline, q1_0_g128 to ik)."""
    from cook.formats.quant_types import TYPES

    if one.lower() == other.lower():
        return True
    return len({t.id for t in TYPES.values() if t.name in (one, other)}) == 1


@dataclass(frozen=True)
class TextJob:
    """``model`` over the text of ``corpus``, in chunks of ``context`` tokens.

    ``chunks`` None reads all of it; ``args`` are further words of the command.
    """

    model: Path
    corpus: Path
    context: int
    chunks: int | None
    threads: int
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImatrixResult:
    """``chunks`` that were really evaluated; perplexity None where its line was lost."""

    chunks: int
    perplexity: float | None
    perplexity_error: float | None
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PerplexityResult:
    """``perplexity`` and its standard error; ``chunks`` evaluated."""

    perplexity: float
    error: float
    chunks: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class DivergenceResult:
    """All in natural units: KLD in nats, ``same_top_percent`` and its error in percent.

    ``perplexity_ratio_error`` is None where the model is so near its base that the engine's
    variance cancels to less than nothing (it prints ``-nan``): the ratio is then 1 within 1e-4.
    """

    perplexity: float
    perplexity_error: float
    base_perplexity: float
    perplexity_ratio: float
    perplexity_ratio_error: float | None
    mean_kld: float
    mean_kld_error: float
    max_kld: float
    p99_kld: float
    median_kld: float
    same_top_percent: float
    same_top_percent_error: float
    rms_delta_p_percent: float
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]


def _command(engine: Engine, tool: str, job: TextJob, *words: str) -> tuple[str, ...]:
    """The argv of a tool that reads the text of ``job``."""
    return (
        str(engine.tool(tool)),
        *("-m", absolute(job.model), "-f", absolute(job.corpus)),
        *("-c", str(job.context), "-t", str(job.threads)),
        *(("--chunks", str(job.chunks)) if job.chunks is not None else ()),
        *words,
        *engine.text_flags(tool),
        *job.args,
    )


_HEAP = re.compile(
    r"malloc assertion|(?:malloc|free|realloc|munmap_chunk)\w*\(\): |corrupted|double free"
)


def imatrix(
    engine: Engine,
    job: TextJob,
    output: Path,
    supervisor: Supervisor,
    *,
    process_output: bool = False,
) -> ImatrixResult:
    """Collect activation statistics into ``output``: GGUF on mainline, legacy .dat on ik.

    ik's kernels are known to write where they may not here, which ends in a segmentation fault or
    in the C library's complaint about its heap: its retries run without them, with a warning.
    """
    _need(job.model, job.corpus)
    more: tuple[str, ...] = ("--process-output",) if process_output else ()
    # ik's has a flag of that name, which means another thing.
    if engine.flavour is Flavour.LLAMA_CPP and engine.has_flag("imatrix", "--output-format"):
        more += ("--output-format", "gguf")
    warnings: list[str] = []
    with temporary_beside(output) as partial:
        for extra in ((), *engine.imatrix_retries()):
            tried = replace(job, args=(*job.args, *extra))
            command = _command(engine, "imatrix", tried, "-o", absolute(partial), *more)
            result = _run(engine, supervisor, command, f"imatrix-{job.model.stem}", output)
            if not _overran(result):
                break
            ended = "hung" if result.outcome is Outcome.STALLED else "crashed"
            warnings.append(f"llama-imatrix {ended} with {' '.join(extra) or 'its defaults'}")
        err, out = _output(result.check())
        if not partial.is_file() or partial.stat().st_size < 16:
            raise _silent(result, "it wrote no imatrix")
        chunks = _imatrix_chunks(engine, partial, result)
        planned = tool_output.parse_planned_chunks(err)
        if engine.flavour is Flavour.IK_LLAMA_CPP:
            # ik's trailer counts differently (8 for 4 chunks), and its log is complete; of
            # mainline's log the last lines may be lost, so there the file's own count holds.
            chunks = tool_output.parse_chunks(out) or planned or 0
        perplexity, error = (
            tool_output.parse_final_estimate(out)
            or tool_output.parse_final_estimate(err)
            or (None, None)
        )
        if planned is not None and chunks == planned - 1 and perplexity is not None:
            # Mainline counts tokens: a last batch of three chunks is cut into pieces of 510, and
            # the 6 that are left are too few for it to collect (below 16, llama-imatrix).
            chunks = planned
        if chunks < (planned or 1):
            raise _silent(result, f"it computed {chunks} of {planned or 'the'} chunks")
        publish(partial, output)
    if warnings:
        warnings.append(f"it was collected with {' '.join(extra)}")
    if job.chunks is not None and chunks < job.chunks:
        warnings.append(f"the corpus has only {chunks} chunks of {job.context} tokens")
    return ImatrixResult(
        chunks=chunks,
        perplexity=perplexity,
        perplexity_error=error,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=_command(engine, "imatrix", tried, "-o", absolute(output), *more),
        warnings=(*warnings, *tool_output.parse_imatrix_warnings(err)),
    )


def _overran(result: ProcessResult) -> bool:
    """Whether the run ended as one does that wrote beyond its memory.

    A broken heap can also hang: the C library waits for a lock that is not held.
    """
    if result.outcome is Outcome.STALLED:
        return True
    aborted = result.returncode == -signal.SIGABRT and _HEAP.search(result.stderr_tail)
    broke = result.returncode == -signal.SIGSEGV or bool(aborted)
    return broke and result.outcome is Outcome.CRASH


def _imatrix_chunks(engine: Engine, path: Path, result: ProcessResult) -> int:
    """Chunks that the written imatrix covers; the failure where it is none, or empty."""
    from cook.formats.imatrix_file import read_imatrix

    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if is_gguf != (engine.flavour is Flavour.LLAMA_CPP):
        raise _silent(result, "the imatrix is not of the engine's format")
    try:
        imatrix = read_imatrix(path)
    except CookError as error:
        raise _silent(result, error.message) from None
    if not imatrix.entries:
        raise _silent(result, "the imatrix has no entries")
    return imatrix.chunk_count


def perplexity(
    engine: Engine, job: TextJob, supervisor: Supervisor, save_base: Path | None = None
) -> PerplexityResult:
    """Perplexity over the text of ``job``; with ``save_base`` its logits are written there, too."""
    _need(job.model, job.corpus)

    def command(base: Path | None) -> tuple[str, ...]:
        words = ("--kl-divergence-base", absolute(base)) if base is not None else ()
        return _command(engine, "perplexity", job, *words)

    keep = temporary_beside(save_base) if save_base else contextlib.nullcontext()
    with keep as partial:
        name = f"perplexity-{job.model.stem}"
        last_line = "Final estimate: PPL"
        result = _run(engine, supervisor, command(partial), name, save_base, last_line)
        err, out = _output(result.check())
        estimate = tool_output.parse_final_estimate(err) or tool_output.parse_final_estimate(out)
        chunks, planned = tool_output.parse_chunks(out), tool_output.parse_planned_chunks(err)
        if estimate is None:
            raise _silent(result, "its final estimate is missing")
        if chunks is None or (planned is not None and chunks != planned):
            raise _silent(result, f"it computed {chunks or 0} of {planned or '?'} chunks")
        if save_base is not None and partial is not None:
            try:
                base = read_base_header(partial)
            except CookError as error:
                raise _silent(result, error.message) from None
            if not base.complete or base.chunks != chunks:
                size = f"{base.file_bytes} of {base.expected_bytes} bytes"
                raise _silent(result, f"the base file has {size}")
            publish(partial, save_base)
    return PerplexityResult(*estimate, chunks, command(save_base))


_BROKEN_BASE = re.compile(
    r"inconsistent vocabulary \([^)\n]*\)|failed reading (?:log-probs|header|tokens|[^\n]{0,60})"
    r"|failed to open[^\n]{0,200}|base file[^\n]{0,200}mismatch[^\n]{0,80}"
)


def divergence(
    engine: Engine,
    model: Path,
    base: Path,
    supervisor: Supervisor,
    *,
    threads: int,
    args: tuple[str, ...] = (),
) -> DivergenceResult:
    """Compare ``model`` with the logits in ``base``, over the same text in the same chunks.

    The engine goes on after a vocabulary mismatch and after a short base file; cook does not.
    """
    _need(model)
    known = read_base_header(base)
    if not known.complete:
        size = f"{known.file_bytes} of {known.expected_bytes} bytes"
        raise InputError(f"{base} is incomplete: {size}", hint="make it again")
    command = (
        str(engine.tool("perplexity")),
        *("-m", absolute(model), "--kl-divergence-base", absolute(base)),
        *("--kl-divergence", "-c", str(known.context), "-t", str(threads)),
        *engine.text_flags("perplexity"),
        *args,
    )
    result = _run(engine, supervisor, command, f"divergence-{model.stem}", None, "Same top p:")
    _, out = _output(result.check())
    values = tool_output.parse_divergence(out)
    chunks = tool_output.parse_divergence_chunks(out)
    if values is None:
        raise _silent(result, "its statistics are missing or not finite (they need 100 tokens)")
    if chunks != known.chunks:
        raise _silent(result, f"it compared {chunks or 0} of {known.chunks} chunks")
    return DivergenceResult(
        **values,
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=command,
    )


_ATTEMPTS = 4


def _run(
    engine: Engine,
    supervisor: Supervisor,
    command: tuple[str, ...],
    name: str,
    out: Path | None,
    last_line: str | None = None,
) -> ProcessResult:
    """Run; again, where mainline exited 0 without its ``last_line`` and without a complaint."""
    writes = (out.parent,) if out is not None else ()
    env = engine.environment()
    for _ in range(_ATTEMPTS if last_line and engine.flavour is Flavour.LLAMA_CPP else 1):
        spec = ProcessSpec(command, name, env, writes=writes, on_output=meter(supervisor))
        result = supervisor.run(spec)
        text = result.stderr_tail + "\n" + result.stdout_tail
        complaint = tool_output.not_finite(text) or _TOO_SHORT.search(text)
        complaint = complaint or _BROKEN_BASE.search(text)
        if result.outcome is not Outcome.OK or (last_line and last_line in text) or complaint:
            break
    return result


_TOO_SHORT = re.compile(r"you need at least \d+ tokens[^\n]*|the data file you provided[^\n]*")


def _output(result: ProcessResult) -> tuple[str, str]:
    """Standard error and standard output; the failure where either has a complaint."""
    err = result.stderr.read_text(encoding="utf-8", errors="replace")
    out = result.stdout.read_text(encoding="utf-8", errors="replace")
    broken = _BROKEN_BASE.search(err) or _BROKEN_BASE.search(out)
    if broken and "--kl-divergence" in result.argv:
        hint = "the base was made from a model with another vocabulary"
        raise failure(result, Outcome.TOOL_ERROR, broken.group(), hint)
    if sign := tool_output.not_finite(err) or tool_output.not_finite(out):
        hint = "a tensor is broken: quantize it to another type, or check the source"
        raise _silent(result, f"the computation is not finite: {sign}", hint)
    if short := _TOO_SHORT.search(err):
        raise failure(result, Outcome.TOOL_ERROR, short.group(), "give it a longer corpus")
    return err, out


def _need(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} does not exist")
