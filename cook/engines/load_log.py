"""How a model really runs, in the words of its library: read from what it logs while it loads.

The server's log and the worker's are of one library, so one reader serves both, and what is said
of a deployed model (:class:`cook.engines.base.ModelArgs`) can be held against either. Mainline's
server tells all of it at ``-lv 4`` and only threads and context otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cook.engines.base import ModelArgs

MASK_TOKENS = 64
"""Engines enlarge a batch below the padding of attention's mask, 64 tokens or fewer."""


@dataclass(frozen=True)
class LoadedModel:
    """One loaded model; None for what was not told.

    ``context``, ``batch`` and ``ubatch`` in tokens; ``offloaded`` layers of the model, the output
    counted as one. Of threads a server tells its target's only.
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
    """Accelerators in whose memory a part of it lies, or of what was loaded beside it. What is
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
    """Every model that ``log`` tells of, in the order in which they were loaded."""
    found: list[LoadedModel] = []
    threads = LoadedModel()
    offloaded = slot = None
    devices: set[str] = set()
    for line in log.splitlines():
        if (told := _BUFFER.search(line)) and not _OWN_MEMORY.match(told[1]):
            devices.add(told[1])
        if size := _SIZE.search(line):
            tokens = int(size[2])
            if size[1] == "ctx":
                found.append(LoadedModel(context=tokens, offloaded=offloaded))
            elif found and size[1] == "batch":
                found[-1] = replace(found[-1], batch=tokens)
            elif found:
                found[-1] = replace(found[-1], ubatch=tokens)
        elif told := _OFFLOADED.search(line):
            offloaded = int(told[1])
        elif told := _THREADS.search(line):
            threads = _threads(told) if threads.threads is None else threads
        elif told := _SLOT.search(line):
            slot = int(told[1])
        elif found:
            found[-1] = _more(found[-1], line)
    if not found:
        found = [LoadedModel(context=slot)]
    found[0] = replace(found[0], threads=threads.threads, threads_batch=threads.threads_batch)
    return tuple(replace(one, devices=frozenset(devices)) for one in found)


def _threads(told: re.Match[str]) -> LoadedModel:
    if told["pool"] is not None:
        return LoadedModel(threads=int(told["pool"]))
    one = int(told["one"] or told["ik"])
    batch = int(told["batch"] or told["ik_batch"])
    return LoadedModel(threads=one, threads_batch=one if batch < 1 else batch)


def _more(known: LoadedModel, line: str) -> LoadedModel:
    if told := _CACHE.search(line):
        return replace(known, cache_type_k=told[1], cache_type_v=told[2])
    if told := _MLA_CACHE.search(line):
        return replace(known, cache_type_k=told[1])
    if told := _FLASH.search(line):
        return replace(known, flash_attention=(told[1] or told[2]) in ("1", "enabled"))
    return known


def contradictions(told: LoadedModel, args: ModelArgs, context: int) -> Iterator[str]:
    """Where what was ``told`` is not what ``args`` and ``context`` say, in words.

    Sizes and threads only: an engine may have its reasons to keep another KV type or no flash
    attention for some model, and has them in the server and in the worker alike.
    """
    known = args.filled()
    batch, ubatch = known.batch or 0, known.ubatch or 0
    tokens = told.context or context
    if told.context is not None and told.context < context:
        yield f"a context of {told.context} tokens, not {context}"
    # An engine may enlarge the context, and cuts batches to what was asked for or to what it made.
    batches = {min(batch, context), min(batch, tokens)}
    if min(batches) < MASK_TOKENS and told.batch is not None:
        batches.add(min(told.batch, MASK_TOKENS))
    if told.batch is not None and told.batch not in batches:
        yield f"batches of {told.batch} tokens, not {min(batch, context)}"
    if told.ubatch is not None and told.ubatch not in {min(ubatch, size) for size in batches}:
        yield f"physical batches of {told.ubatch} tokens, not {min(ubatch, batch, context)}"
    if told.threads is not None and told.threads != known.threads:
        yield f"{told.threads} threads, not {known.threads}"
    if told.threads_batch is not None and told.threads_batch != known.threads_batch:
        yield f"{told.threads_batch} threads for batches, not {known.threads_batch}"
