"""ik's ``llama-spec-bench``: drafting measured in one process, without a server.

It decodes the prompts of a JSONL file one after the other and tells, for each, what was drafted
and accepted (docs/internals/engines.md#llama-spec-bench). Two ways in which its figures lie are
avoided here: a prompt is asked once (a repeated one is drafted from the cache of its first run,
at 100 %), and unrelated text parts the prompts (so is one that begins as the last one did).
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cook.engines.arguments import Arguments, place
from cook.engines.base import ServerJob
from cook.engines.process.outcome import Outcome, ProcessResult, assertion_of, failure
from cook.engines.process.supervisor import Supervisor
from cook.engines.speculation import BY_DRAFT, unwanted
from cook.errors import InputError, InternalError, PrerequisiteError
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling

if TYPE_CHECKING:
    from cook.engines.base import Engine
    from cook.engines.ik_llama_cpp import IkLlamaCpp

TOOL = "spec-bench"
SOME_FAILED = 2
"""Its exit status when attempts failed and the others are good."""
_NO_TEXT = "json.exception.type_error.316"
_MAX_OUTPUT = 64 << 20


class UnprintableReply(Exception):
    """A reply that is no UTF-8: the tool dies while it prints it, and all rows are lost."""


@dataclass(frozen=True)
class BenchPrompt:
    """One row of the prompts' file; ``id`` names it in the answer."""

    id: str
    text: str
    max_tokens: int


@dataclass(frozen=True)
class Attempt:
    """What became of one prompt. Times in ms; ``total_ms`` holds both prompts' reading.

    ``generated`` counts all tokens, also those that it writes past an end of the reply which
    was accepted inside a draft. ``drafted`` and ``accepted`` are None without a draft.
    ``prompt`` is the text as its chat template rendered it. ``error`` is why it failed, or None.
    """

    id: str
    error: str | None
    stop: str
    prompt: str
    prompt_n: int
    prompt_ms: float
    generated: int
    decode_ms: float
    total_ms: float
    drafted: int | None
    accepted: int | None
    text: str


@dataclass(frozen=True)
class BenchRun:
    """All attempts, in the order of the prompts."""

    attempts: tuple[Attempt, ...]
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]


def require_spec_bench(engine: Engine) -> None:
    """PrerequisiteError for an engine that has no llama-spec-bench; only ik makes one."""
    if engine.flavour is not Flavour.IK_LLAMA_CPP:
        raise PrerequisiteError(
            f"engine {engine.name} is {engine.flavour}, which has no llama-spec-bench",
            hint="leave out `score: live: spec-bench`, or use ik: --engine ik=DIR",
        )
    engine.tool(TOOL)


def run_spec_bench(
    engine: Engine,
    job: ServerJob,
    prompts: Sequence[BenchPrompt],
    sampling: Sampling,
    supervisor: Supervisor,
    *,
    template: bool,
    on_row: Callable[[int], None] | None = None,
) -> BenchRun:
    """Run every prompt once; ``on_row`` is told how many have run.

    ``template``: the target's own chat template renders the prompts. StepError unless rows and
    summary are whole and agree; UnprintableReply when a reply is no UTF-8.
    """
    from cook.engines.ik_llama_cpp import IkLlamaCpp

    require_spec_bench(engine)
    if not isinstance(engine, IkLlamaCpp):
        raise InternalError(f"{engine.name} calls itself {engine.flavour} and is none")
    texts = [p.text for p in prompts]
    if not texts or len(set(texts)) < len(texts) or len({p.id for p in prompts}) < len(prompts):
        raise InputError("llama-spec-bench: every prompt once: a repeated one accepts everything")
    for path in (job.target, job.draft):
        if path is not None and not path.is_file():
            raise InputError(f"{path} does not exist")
    rows = 0

    def seen(stream: str, chunk: bytes) -> None:
        nonlocal rows
        if stream == "stdout" and on_row is not None:
            rows += chunk.count(b"\n")
            on_row(rows)

    with TemporaryDirectory(prefix="cook-spec-bench-") as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(map(_row, prompts)), encoding="utf-8")
        command = spec_bench_command(engine, job, file, sampling, template=template)
        result = engine.run(supervisor, command, f"spec-bench-{job.target.stem}", on_output=seen)
    if result.returncode == -signal.SIGABRT and _NO_TEXT in result.stderr_tail:
        raise UnprintableReply(assertion_of(result.stderr_tail) or _NO_TEXT)
    if result.returncode != SOME_FAILED or result.outcome is not Outcome.TOOL_ERROR:
        result.check()
    return BenchRun(
        attempts=_attempts(result, prompts, drafting=job.draft is not None),
        seconds=result.seconds,
        peak_rss_bytes=result.peak_rss_bytes,
        command=command,
    )


def spec_bench_command(
    engine: IkLlamaCpp, job: ServerJob, prompts: Path, sampling: Sampling, *, template: bool
) -> tuple[str, ...]:
    """The argv; what places the models is said as for the server."""
    job = engine.without_inherited_overrides(job)
    args = Arguments(engine, TOOL)
    args.add_path("--model", job.target)
    args.add("--ctx-size", job.context)
    place(args, job.target_args)
    engine.add_draft(args, job)
    args.add_path("--prompts", prompts)
    args.add("--repeat", 1)
    args.add("--retry", 0)
    args.add("--output-format", "jsonl")
    args.add_flag("--output-details", True)
    for name, value in sampling.asked().items():
        args.add("--temp" if name == "temperature" else f"--{name.replace('_', '-')}", value)
    args.add_flag("--no-escape", True)
    extra = job.target_args.extra
    if not template:
        # No flag says so; a prefix (of nothing) is what switches the template off, and with it
        # the ChatML that stands in where a model has none.
        args.add("--in-prefix", "")
    elif "--jinja" not in extra:
        # As the server is started: where jinja is on unless told otherwise, tell it.
        args.add_flag_if_known("--no-jinja")
    return args.argv(extra)


def _row(prompt: BenchPrompt) -> str:
    row = {"prompt": prompt.text, "id": prompt.id, "name": prompt.id}
    return json.dumps(row | {"max_tokens": prompt.max_tokens}) + "\n"


def _attempts(
    result: ProcessResult, prompts: Sequence[BenchPrompt], *, drafting: bool
) -> tuple[Attempt, ...]:
    """The rows, proven: one a prompt, in order, adding up to the summary's counts."""
    size = result.stdout.stat().st_size
    if result.truncated or size > _MAX_OUTPUT:
        raise failure(result, Outcome.SILENT_FAILURE, f"it wrote {size} bytes of rows")
    lines = result.stdout.read_bytes().splitlines()
    try:
        rows = [_object(json.loads(line), "a row") for line in lines]
        kinds = [row.get("row_type") for row in rows]
        if kinds != ["attempt"] * len(prompts) + ["summary"]:
            raise ValueError(f"{kinds.count('attempt')} of {len(prompts)} rows, and no summary")
        attempts = tuple(_attempt(row, drafting) for row in rows[:-1])
        _agree(attempts, rows[-1], [p.id for p in prompts], result.returncode)
    except (ValueError, KeyError, RecursionError) as error:
        raise failure(result, Outcome.SILENT_FAILURE, f"its rows are not whole: {error}") from None
    return attempts


def _attempt(row: dict[str, Any], drafting: bool) -> Attempt:
    timing, tokens = _object(row["timing"], "timing"), _object(row["tokens"], "tokens")
    quality = _object(row["quality"], "quality")
    told, error = _object(row["speculative"], "speculative"), quality["error"]
    good = quality["ok"] is True
    stages = told["stages"]
    if good and drafting != bool(stages):
        raise ValueError("it drafted nothing" if drafting else "it drafted without a draft")
    kinds = [str(one["type"]) for s in stages if "type" in (one := _object(s, "a stage"))]
    if others := unwanted(kinds, (BY_DRAFT[Flavour.IK_LLAMA_CPP],) if drafting else ()):
        raise ValueError(f"it drafted by {', '.join(others)}")
    drafted, accepted = _count(told, "draft_tokens"), _count(told, "accepted_tokens")
    if accepted > drafted:
        raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
    return Attempt(
        id=str(row["task_id"]),
        error=None if good else str(error or "it does not say why")[:300],
        stop="eos" if quality["hit_eog"] is True else "limit",
        prompt=str(row["prompt"]),
        prompt_n=_count(tokens, "prompt"),
        prompt_ms=_ms(timing, "prompt_s"),
        generated=_count(tokens, "generated"),
        decode_ms=_ms(timing, "decode_s"),
        total_ms=_ms(timing, "total_s"),
        drafted=drafted if drafting else None,
        accepted=accepted if drafting else None,
        text=str(row["output"]),
    )


def _agree(
    attempts: Sequence[Attempt], summary: dict[str, Any], ids: Sequence[str], returncode: int
) -> None:
    failed = sum(a.error is not None for a in attempts)
    told = _object(summary["speculative"], "speculative")
    tokens = _object(summary["tokens"], "tokens")
    pairs = {
        "ids": ([a.id for a in attempts], list(ids)),
        "attempts": (_count(summary, "attempts"), len(attempts)),
        "failures": (_count(summary, "failures"), failed),
        "exit status": (returncode == SOME_FAILED, failed > 0),
        "generated": (_count(tokens, "generated"), sum(a.generated for a in attempts)),
        "drafted": (_count(told, "draft_tokens"), sum(a.drafted or 0 for a in attempts)),
        "accepted": (_count(told, "accepted_tokens"), sum(a.accepted or 0 for a in attempts)),
    }
    for name, (said, found) in pairs.items():
        if said != found:
            raise ValueError(f"{name}: the summary says {said}, the rows {found}")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value


def _count(row: dict[str, Any], field: str) -> int:
    value = row[field]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise ValueError(f"{field} is no count")
    return value


def _ms(row: dict[str, Any], field: str) -> float:
    value = row[field]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{field} is no time")
    return float(value) * 1000
