"""How fast a model decodes: one token at a time, and batches as verification makes them.

``llama-bench`` for single steps, ``llama-batched-bench`` for the curve (with logits for every
token, which llama-bench does not compute). ik checks no decode result, so that a failure looks
like a very fast run (engines.md, section 4): its complaints are searched for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cook.engines.base import Flavour, ModelArgs
from cook.engines.measure import until_told
from cook.engines.outcome import Outcome, failure
from cook.engines.process import ProcessResult, Supervisor
from cook.engines.server_args import Arguments
from cook.errors import InputError

if TYPE_CHECKING:
    from cook.engines.tools import Tools

_ALL_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
_FAILED = re.compile(
    r"[^\n]*(?:failed to decode|llama_decode[^\n]{0,40}fail|failed to eval|decode: failed"
    r"|failed to find (?:a )?(?:free|KV)|n_ctx_req = \d+ is greater)[^\n]*",
    re.IGNORECASE,
)
_ROW = re.compile(r"^\|" + r"\s*(\d+(?:\.\d+)?|-?nan|inf)\s*\|" * 10, re.MULTILINE)
_MAX_OUTPUT = 8 << 20


@dataclass(frozen=True)
class DecodeSpeed:
    """Single-token decoding: the median of ``samples`` (tokens/s, one a repeat).

    ``n_gen`` tokens after ``depth`` tokens of context; ``model_bytes`` is the engine's count.
    """

    tokens_per_s: float
    samples: tuple[float, ...]
    n_gen: int
    depth: int
    model_bytes: int
    seconds: float
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchPoint:
    """One decode of ``batch`` tokens, with all their logits: mean time of a step."""

    batch: int
    step_ms: float


def decode_speed(
    engine: Tools,
    model: Path,
    args: ModelArgs,
    supervisor: Supervisor,
    *,
    n_gen: int = 64,
    depth: int = 0,
    repeats: int = 5,
) -> DecodeSpeed:
    """Median decode speed of ``model``; StepError unless every repeat is a finite positive time."""
    _need(model)
    command = bench_command(engine, model, args, n_gen=n_gen, depth=depth, repeats=repeats)
    result = engine.run(supervisor, command, f"bench-{model.stem}").check()
    _refuse_failed(result)
    row = _bench_row(result, n_gen)
    samples = tuple(
        n_gen * 1e9 / value for value in _positive(row.get("samples_ns"), result, "samples_ns")
    )
    if len(samples) != repeats:
        told = f"{len(samples)} of {repeats} repeats are in its output"
        raise failure(result, Outcome.SILENT_FAILURE, told)
    size = row.get("model_size")
    return DecodeSpeed(
        tokens_per_s=median(samples),
        samples=samples,
        n_gen=n_gen,
        depth=depth,
        model_bytes=size if isinstance(size, int) else 0,
        seconds=result.seconds,
        command=command,
        warnings=_unsaid(args),
    )


def prompt_and_decode(
    engine: Tools,
    model: Path,
    args: ModelArgs,
    supervisor: Supervisor,
    *,
    n_prompt: int,
    n_gen: int,
    repeats: int,
) -> tuple[float, float]:
    """Least milliseconds a token: reading a prompt of ``n_prompt``, decoding ``n_gen``.

    The best of the repeats, since whatever else runs can only add to a time. StepError unless
    every repeat of both is a finite positive time.
    """
    _need(model)
    command = bench_command(
        engine, model, args, n_gen=n_gen, depth=0, repeats=repeats, n_prompt=n_prompt
    )
    result = engine.run(supervisor, command, f"bench-{model.stem}").check()
    _refuse_failed(result)
    found = []
    for tokens, (prompt, generated) in ((n_prompt, (n_prompt, 0)), (n_gen, (0, n_gen))):
        row = _bench_row(result, generated, prompt)
        samples = _positive(row.get("samples_ns"), result, "samples_ns")
        found.append(min(samples) / 1e6 / tokens)
    return found[0], found[1]


def batch_curve(
    engine: Tools,
    model: Path,
    args: ModelArgs,
    supervisor: Supervisor,
    *,
    batches: Sequence[int] = tuple(range(1, 18)),
    depth: int = 512,
    steps: int = 32,
) -> tuple[BatchPoint, ...]:
    """Time of a decode step by batch size: what verifying ``batch - 1`` drafted tokens costs.

    ``depth`` tokens of shared context, ``steps`` decodes a size. StepError when a size is
    missing (the engines skip silently what does not fit).
    """
    _need(model)
    command = batched_bench_command(engine, model, args, batches=batches, depth=depth, steps=steps)

    def run() -> ProcessResult:
        result = engine.run(supervisor, command, f"batched-bench-{model.stem}").check()
        _refuse_failed(result)
        return result

    result = until_told(engine, run, lambda r: set(batches) <= set(_step_times(engine, r)))
    times = _step_times(engine, result)
    missing = sorted(set(batches) - set(times))
    if missing:
        told = f"no time for batches of {', '.join(map(str, missing))}"
        raise failure(result, Outcome.SILENT_FAILURE, told)
    return tuple(BatchPoint(batch, times[batch]) for batch in sorted(set(batches)))


def bench_command(
    engine: Tools,
    model: Path,
    args: ModelArgs,
    *,
    n_gen: int,
    depth: int,
    repeats: int,
    n_prompt: int = 0,
) -> tuple[str, ...]:
    """The argv of llama-bench for single-token decoding at ``depth``, and a prompt if any."""
    ik = engine.flavour is Flavour.IK_LLAMA_CPP
    words = Arguments(engine, "bench")
    words.add_path("-m", model)
    words.add("-p", n_prompt)
    if ik and depth:
        words.add("-n", 0)
        words.add("-gp", f"{depth},{n_gen}")
    else:
        words.add("-n", n_gen)
        words.add("-d", depth or None)
    words.add("-r", repeats)
    words.add("-o", "json")
    words.add("-ngl", args.n_gpu_layers)
    overrides = (*args.override_tensor, *((_ALL_EXPERTS,) if args.cpu_moe else ()))
    # Mainline splits a list of tests at ",", and overrides of one test at ";".
    words.add("-ot", (";" if not ik else ",").join(overrides) or None)
    words.add("--n-cpu-moe", args.n_cpu_moe)
    words.add("-dev", "/".join(args.devices) or None)
    words.add("-ctk", args.cache_type_k)
    words.add("-ctv", args.cache_type_v)
    if args.flash_attention is not None:
        on_off = ("0", "1") if ik else ("off", "on")
        words.add("-fa", on_off[args.flash_attention])
    words.add("-t", args.threads)
    words.add("-b", args.batch)
    words.add("-ub", args.ubatch)
    words.add("-rpc", ",".join(args.rpc) or None)
    if not engine.facts.repack:
        # llama-bench has its own parser and ignores LLAMA_ARG_REPACK.
        words.add("--repack", 0)
    return words.argv(())


def batched_bench_command(
    engine: Tools,
    model: Path,
    args: ModelArgs,
    *,
    batches: Sequence[int],
    depth: int,
    steps: int,
) -> tuple[str, ...]:
    """The argv of llama-batched-bench: shared prompt, one token a sequence and step."""
    if not batches or min(batches) < 1 or depth < 1 or steps < 1:
        raise InputError("a batch curve needs batches, a depth and steps of at least 1")
    words = Arguments(engine, "batched-bench")
    words.add_path("-m", model)
    words.add("-npp", depth)
    words.add("-ntg", steps)
    words.add("-npl", ",".join(map(str, sorted(set(batches)))))
    words.add_flag("-pps", True)
    words.add_flag_if_known("-kvu")
    words.add("-c", depth + max(batches) * steps)
    words.add("-ngl", args.n_gpu_layers)
    for override in args.override_tensor:
        words.add("--override-tensor", override)
    words.add_flag("--cpu-moe", args.cpu_moe)
    words.add("--n-cpu-moe", args.n_cpu_moe)
    words.add("--device", ",".join(args.devices) or None)
    words.add("-ctk", args.cache_type_k)
    words.add("-ctv", args.cache_type_v)
    if args.flash_attention is not None:
        words.add("--flash-attn", "on" if args.flash_attention else "off")
    words.add("-t", args.threads)
    words.add("-tb", args.threads_batch)
    words.add("-b", args.batch)
    words.add("-ub", args.ubatch)
    words.add("--rpc", ",".join(args.rpc) or None)
    if engine.flavour is Flavour.LLAMA_CPP:
        words.add("--output-format", "jsonl")
        words.add_if_known("--fit", "off")
    return words.argv(())


def _step_times(engine: Tools, result: ProcessResult) -> dict[int, float]:
    ik = engine.flavour is Flavour.IK_LLAMA_CPP
    text = (result.stderr if ik else result.stdout).read_text(errors="replace")[:_MAX_OUTPUT]
    return parse_table(text) if ik else parse_jsonl(text)


def parse_jsonl(text: str) -> dict[int, float]:
    """Mainline's rows: batch -> milliseconds a step; rows that make no sense are left out."""
    times: dict[int, float] = {}
    for line in text.splitlines():
        try:
            row = json.loads(line)
            batch, steps, seconds = row["pl"], row["tg"], float(row["t_tg"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(batch, int) and isinstance(steps, int) and steps > 0:
            _keep(times, batch, seconds * 1000 / steps)
    return times


def parse_table(text: str) -> dict[int, float]:
    """ik's rows: batch -> milliseconds a step, from the rate (times have 1 ms resolution)."""
    times: dict[int, float] = {}
    for found in _ROW.finditer(text):
        batch, rate = float(found.group(3)), float(found.group(8))
        if math.isfinite(rate) and rate > 0:
            _keep(times, int(batch), batch * 1000 / rate)
    return times


def _keep(times: dict[int, float], batch: int, step_ms: float) -> None:
    if batch > 0 and math.isfinite(step_ms) and step_ms > 0:
        times[batch] = step_ms


def _bench_row(result: ProcessResult, n_gen: int, n_prompt: int = 0) -> dict[str, Any]:
    try:
        rows = json.loads(result.stdout.read_bytes()[:_MAX_OUTPUT])
    except (ValueError, RecursionError):
        raise failure(result, Outcome.SILENT_FAILURE, "its output is no JSON") from None
    if isinstance(rows, list):
        for row in rows:
            asked = (n_prompt, n_gen)
            if isinstance(row, dict) and (row.get("n_prompt", 0), row.get("n_gen")) == asked:
                return row
    raise failure(result, Outcome.SILENT_FAILURE, "the test is not in its output")


def _positive(value: Any, result: ProcessResult, field: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    good = [n for n in numbers if isinstance(n, int | float) and math.isfinite(n) and n > 0]
    if not good or len(good) != len(numbers):
        raise failure(result, Outcome.SILENT_FAILURE, f"{field} are not positive times")
    return tuple(float(n) for n in good)


def _refuse_failed(result: ProcessResult) -> None:
    if found := _FAILED.search(result.stderr_tail + "\n" + result.stdout_tail):
        raise failure(result, Outcome.SILENT_FAILURE, found.group().strip())


def _unsaid(args: ModelArgs) -> tuple[str, ...]:
    return (f"llama-bench was run without {' '.join(args.extra)}",) if args.extra else ()


def _need(model: Path) -> None:
    if not model.is_file():
        raise InputError(f"{model} does not exist")
