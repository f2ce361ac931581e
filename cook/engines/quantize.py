"""Quantize one model with ``llama-quantize`` and prove what was written.

Either engine leaves partial files, exits 0 after some failures, and replaces types silently
(docs/internals/engines.md#llama-quantize); so the tool writes under a temporary name, its last
line must be there, and the types that its log and the file show must be the ones resolved. Only
then is the file synced and renamed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cook.engines import tool_output
from cook.engines.base import QuantizeJob, QuantizeResult
from cook.engines.process.outcome import Outcome, ProcessResult, failure
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import Meter
from cook.errors import CookError, InputError, PrerequisiteError, StepError
from cook.files import publish, temporary_beside
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from cook.engines.tools import Tools
    from cook.formats.gguf import GgufFile

# With these base types both engines ignore every rule.
UNRULED = frozenset({"F32", "F16", "BF16", "COPY"})


def run(engine: Tools, job: QuantizeJob, supervisor: Supervisor) -> QuantizeResult:
    """Quantize; the output is whole and verified, or absent.

    Raises InputError for a job that no run can fulfil, PrerequisiteError for what this engine
    lacks, StepError when the tool fails or its log or file disagree with ``job.expected``.
    """
    check(engine, job)
    with temporary_beside(job.output) as partial:
        result = engine.run(
            supervisor,
            engine.quantize_command(dataclasses.replace(job, output=partial)),
            f"quantize-{job.output.stem}",
            writes=(job.output.parent,),
            on_output=Meter(supervisor),
        ).check()
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


def check(engine: Tools, job: QuantizeJob) -> None:
    """Refuse a job that would fail, or worse: ik truncates its source when IN is OUT."""
    if not job.source.is_file():
        raise InputError(f"{job.source} does not exist")
    if job.output.exists() and job.output.samefile(job.source):
        raise InputError(f"{job.source} would be overwritten by its own quantization")
    ftypes = {name.upper() for name in engine.capabilities.ftypes}
    if ftypes and job.ftype.upper() not in ftypes:
        raise PrerequisiteError(
            f"engine {engine.name} ({engine.flavour}) has no base type {job.ftype}",
            hint=f"it has {', '.join(sorted(engine.capabilities.ftypes))}",
        )
    if job.rules and job.ftype.upper() in UNRULED:
        raise InputError(f"base type {job.ftype} makes the engine ignore every rule")
    have = {name.lower() for name in engine.capabilities.quant_types}
    for rule in job.rules:
        if have and rule.type.lower() not in have:
            raise PrerequisiteError(
                f"engine {engine.name} ({engine.flavour}) has no type {rule.type}",
                hint="choose another type, or the other engine with --engine",
            )
    if job.imatrix is not None:
        _check_imatrix(engine, job.imatrix)


def same_type(one: str, other: str) -> bool:
    """Whether two spellings mean one type (id 41 is q1_0 to mainline, q1_0_g128 to ik)."""
    if one.lower() == other.lower():
        return True
    from cook.formats.quant_types import TYPES

    ids = [next((t.id for t in TYPES.values() if t.name == name), None) for name in (one, other)]
    return ids[0] is not None and ids[0] == ids[1]


def compare(
    expected: Mapping[str, str], logged: Mapping[str, str], written: Mapping[str, str]
) -> tuple[str, ...]:
    """Every tensor whose type differs between recipe, log and file, told in words."""
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


def _check_imatrix(engine: Tools, imatrix: Path) -> None:
    try:
        with imatrix.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"imatrix {imatrix} cannot be read: {error.strerror}") from None
    if magic == b"GGUF" and engine.flavour is Flavour.IK_LLAMA_CPP:
        # ik does not look at the magic and aborts on its own length check.
        raise InputError(
            f"{imatrix} is a GGUF imatrix; ik_llama.cpp reads only the legacy .dat",
            hint="`cook inspect` shows the format; cook converts its own",
        )


def _verify(
    engine: Tools, job: QuantizeJob, partial: Path, result: ProcessResult
) -> tuple[GgufFile, tool_output.QuantizeLog]:
    from cook.formats.gguf import read_gguf

    if not tool_output.quantize_finished(result.stdout_tail):
        raise failure(result, Outcome.SILENT_FAILURE, "its last line, the time it took, is missing")
    if not partial.is_file():
        raise failure(result, Outcome.SILENT_FAILURE, "it wrote no file")
    log = tool_output.parse_quantize_log(
        result.stderr.read_text(encoding="utf-8", errors="replace")
    )
    try:
        file = read_gguf(partial)
        source = read_gguf(job.source)
    except CookError as error:
        told = error.message.replace(str(partial), "its output")
        raise failure(result, Outcome.SILENT_FAILURE, told) from None
    if len(file.tensors) != len(source.tensors):
        count = f"{len(file.tensors)} of {len(source.tensors)} tensors are in its output"
        raise failure(result, Outcome.SILENT_FAILURE, count)
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
