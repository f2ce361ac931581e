"""How fast a model reads a prompt and decodes one token at a time, by ``llama-bench``.

ik checks no decode result, so that a failure looks like a very fast run
(docs/internals/engines.md#llama-bench): its complaints are searched for.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from cook.engines.arguments import Arguments
from cook.engines.base import Engine, ModelArgs
from cook.engines.process.outcome import Outcome, ProcessResult, failure
from cook.engines.process.supervisor import Supervisor
from cook.errors import InputError
from cook.formats.quant_types import Flavour

_ALL_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
_FAILED = re.compile(
    r"[^\n]*(?:failed to decode|llama_decode[^\n]{0,40}fail|failed to eval|decode: failed"
    r"|failed to find (?:a )?(?:free|KV)|n_ctx_req = \d+ is greater)[^\n]*",
    re.IGNORECASE,
)
_MAX_OUTPUT = 8 << 20


def prompt_and_decode(
    engine: Engine,
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
    command = _command(engine, model, args, n_prompt=n_prompt, n_gen=n_gen, repeats=repeats)
    result = engine.run(supervisor, command, f"bench-{model.stem}").check()
    _refuse_failed(result)
    found = []
    for tokens, (prompt, generated) in ((n_prompt, (n_prompt, 0)), (n_gen, (0, n_gen))):
        row = _bench_row(result, generated, prompt)
        samples = _positive(row.get("samples_ns"), result, "samples_ns")
        if len(samples) != repeats:
            told = f"{len(samples)} of {repeats} repeats are in its output"
            raise failure(result, Outcome.SILENT_FAILURE, told)
        found.append(min(samples) / 1e6 / tokens)
    return found[0], found[1]


def _command(
    engine: Engine, model: Path, args: ModelArgs, *, n_prompt: int, n_gen: int, repeats: int
) -> tuple[str, ...]:
    """The argv of llama-bench."""
    ik = engine.flavour is Flavour.IK_LLAMA_CPP
    words = Arguments(engine, "bench")
    words.add_path("-m", model)
    words.add("-p", n_prompt)
    words.add("-n", n_gen)
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
    words.add_flag_if_known("--offline")
    if not engine.facts.repack:
        # llama-bench has its own parser and ignores LLAMA_ARG_REPACK.
        words.add("--repack", 0)
    return words.argv(())


def _bench_row(result: ProcessResult, n_gen: int, n_prompt: int) -> dict[str, Any]:
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


def _need(model: Path) -> None:
    if not model.is_file():
        raise InputError(f"{model} does not exist")
