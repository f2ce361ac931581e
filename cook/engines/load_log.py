"""How a model really runs, in the words of its library: read from what it logs while it loads.

The server's log and the worker's are of one library, so one reader serves both, and the settings
of a deployed model (:class:`cook.engines.base.ModelArgs`) can be held against either. Mainline's
server prints all of it at ``-lv 4`` and only threads and context otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cook.engines.base import ModelArgs

MASK_TOKENS = 64
"""Engines enlarge a batch below the padding of attention's mask, 64 tokens or fewer."""


@dataclass(frozen=True)
class LoadedModel:
    """One loaded model; None for what the log does not have.

    ``context``, ``batch`` and ``ubatch`` in tokens; ``offloaded`` layers of the model, the output
    counted as one. Of threads a server prints its target's only.
    """

    context: int | None = None
    batch: int | None = None
    ubatch: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    offloaded: int | None = None
    flash_attention: bool | None = None
    threads: int | None = None
    threads_batch: int | None = None
    devices: frozenset[str] = frozenset()
    """Accelerators in whose memory a part of it lies, or of what was loaded with it. What is
    called offloaded may lie in the computer's own: a build without a device says so, too."""


_SIZE = re.compile(
    r"llama_(?:context|init_from_model|new_context_with_model): n_(ctx|batch|ubatch) *= (\d+)"
)
_SLOT = re.compile(r"n_ctx_slot(?: = |=)(\d+)")
_CACHE = re.compile(r"\bK \((\w+)\):.*\bV \((\w+)\):")
_MLA_CACHE = re.compile(r"\bc\^KV \((\w+)\):")
_OFFLOADED = re.compile(r"offloaded (\d+)/\d+ layers to GPU")
_BUFFER = re.compile(r"[:\s](\S+) +(?:model |KV |compute |output |RS )?buffer size +=")
_OWN_MEMORY = re.compile(r"CPU|.*_Host$")
_FLASH = re.compile(
    r"flash_attn +=? *(0|1|enabled|disabled)\b|Flash Attention .*?(enabled|disabled)"
)
_THREADS = re.compile(
    r"system_info: n_threads = (?P<one>\d+) \(n_threads_batch = (?P<batch>\d+)\)"
    r"|\bn_threads=\"?(?P<ik>\d+)\"? .*?n_threads_batch=\"?(?P<ik_batch>-?\d+)"
    r"|threadpool init, n_threads = (?P<pool>\d+)"
)


def read_load_log(log: str) -> tuple[LoadedModel, ...]:
    """Every model in ``log``, in the order in which they were loaded."""
    models: list[dict[str, Any]] = []
    threads: dict[str, int] = {}
    offloaded = slot = None
    devices: set[str] = set()
    for line in log.splitlines():
        if (found := _BUFFER.search(line)) and not _OWN_MEMORY.match(found[1]):
            devices.add(found[1])
        if found := _SIZE.search(line):
            if found[1] == "ctx":
                models.append({"context": int(found[2]), "offloaded": offloaded})
            elif models:
                models[-1][found[1]] = int(found[2])
        elif found := _OFFLOADED.search(line):
            offloaded = int(found[1])
        elif found := _THREADS.search(line):
            threads = threads or _threads(found)
        elif found := _SLOT.search(line):
            slot = int(found[1])
        elif not models:
            continue
        elif found := _CACHE.search(line):
            models[-1] |= {"cache_type_k": found[1], "cache_type_v": found[2]}
        elif found := _MLA_CACHE.search(line):
            models[-1]["cache_type_k"] = found[1]
        elif found := _FLASH.search(line):
            models[-1]["flash_attention"] = (found[1] or found[2]) in ("1", "enabled")
    models = models or [{"context": slot}]
    models[0] |= threads
    return tuple(LoadedModel(**model, devices=frozenset(devices)) for model in models)


def _threads(found: re.Match[str]) -> dict[str, int]:
    if found["pool"] is not None:
        return {"threads": int(found["pool"])}
    one = int(found["one"] or found["ik"])
    batch = int(found["batch"] or found["ik_batch"])
    return {"threads": one, "threads_batch": one if batch < 1 else batch}


def contradictions(loaded: LoadedModel, args: ModelArgs, context: int) -> Iterator[str]:
    """Where the ``loaded`` model is not what ``args`` and ``context`` say, in words.

    Sizes and threads only: an engine may have its reasons to keep another KV type or no flash
    attention for some model, and has them in the server and in the worker alike.
    """
    known = args.filled()
    batch, ubatch = known.batch or 0, known.ubatch or 0
    tokens = loaded.context or context
    if loaded.context is not None and loaded.context < context:
        yield f"a context of {loaded.context} tokens, not {context}"
    # An engine may enlarge the context, and cuts batches to what was asked for or to what it made.
    batches = {min(batch, context), min(batch, tokens)}
    if min(batches) < MASK_TOKENS and loaded.batch is not None:
        batches.add(min(loaded.batch, MASK_TOKENS))
    if loaded.batch is not None and loaded.batch not in batches:
        yield f"batches of {loaded.batch} tokens, not {min(batch, context)}"
    if loaded.ubatch is not None and loaded.ubatch not in {min(ubatch, size) for size in batches}:
        yield f"physical batches of {loaded.ubatch} tokens, not {min(ubatch, batch, context)}"
    if loaded.threads is not None and loaded.threads != known.threads:
        yield f"{loaded.threads} threads, not {known.threads}"
    if loaded.threads_batch is not None and loaded.threads_batch != known.threads_batch:
        yield f"{loaded.threads_batch} threads for batches, not {known.threads_batch}"
