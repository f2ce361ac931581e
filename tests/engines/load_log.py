"""How a model really runs, in the words of its library: read from what it logs while it loads.

The server's log and the worker's are of one library, so one reader serves both, and the settings
of a deployed model are held against both. Mainline's server prints all of it at ``-lv 4``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


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


_SIZE = re.compile(
    r"llama_(?:context|init_from_model|new_context_with_model): n_(ctx|batch|ubatch) *= (\d+)"
)
_SLOT = re.compile(r"n_ctx_slot(?: = |=)(\d+)")
_CACHE = re.compile(r"\bK \((\w+)\):.*\bV \((\w+)\):")
_MLA_CACHE = re.compile(r"\bc\^KV \((\w+)\):")
_OFFLOADED = re.compile(r"offloaded (\d+)/\d+ layers to GPU")
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
    for line in log.splitlines():
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
    return tuple(LoadedModel(**model) for model in models)


def _threads(found: re.Match[str]) -> dict[str, int]:
    if found["pool"] is not None:
        return {"threads": int(found["pool"])}
    one = int(found["one"] or found["ik"])
    batch = int(found["batch"] or found["ik_batch"])
    return {"threads": one, "threads_batch": one if batch < 1 else batch}
