"""How a model really runs, in the words of its library: read from what it logs while it loads.

The server's log and the worker's are of one library, so one reader serves both, and the settings
of a deployed model are held against both. Mainline's server prints all of it at ``-lv 4``.
"""

from __future__ import annotations

import re

LoadedModel = dict[str, int | str]
"""One loaded model, of what the log has: ``ctx``, ``batch`` and ``ubatch`` in tokens;
``k`` and ``v``, the cache's types; ``offloaded`` layers, the output counted as one; ``flash``;
``threads`` and ``threads_batch``, of which a server prints its target's only."""
_SIZE = re.compile(
    r"llama_(?:context|init_from_model|new_context_with_model): n_(ctx|batch|ubatch) *= (\d+)"
)
_CACHE = re.compile(r"\bK \((\w+)\):.*\bV \((\w+)\):")
_OFFLOADED = re.compile(r"offloaded (\d+)/\d+ layers to GPU")
_FLASH = re.compile(
    r"flash_attn +=? *(0|1|enabled|disabled)\b|Flash Attention .*?(enabled|disabled)"
)
_THREADS = re.compile(
    r"(?:system_info: n_threads = |\bn_threads=\"?)(\d+)\"? .*?n_threads_batch ?=\"? ?(-?\d+)"
    r"|threadpool init, n_threads = (\d+)"
)


def read_load_log(log: str) -> tuple[LoadedModel, ...]:
    """Every model in ``log``, in the order in which they were loaded."""
    models: list[LoadedModel] = []
    before: LoadedModel = {}
    threads: LoadedModel = {}
    for line in log.splitlines():
        if found := _SIZE.search(line):
            if found[1] == "ctx":
                models.append(dict(before))
            if models:
                models[-1][found[1]] = int(found[2])
        elif found := _OFFLOADED.search(line):
            before["offloaded"] = int(found[1])
        elif found := _THREADS.search(line):
            one, batch = int(found[1] or found[3]), int(found[2] or 0)
            both = {"threads_batch": batch if batch > 0 else one} if found[2] else {}
            threads = threads or {"threads": one, **both}
        elif models and (found := _CACHE.search(line)):
            models[-1] |= {"k": found[1], "v": found[2]}
        elif models and (found := _FLASH.search(line)):
            models[-1]["flash"] = (found[1] or found[2]) in ("1", "enabled")
    models[0] |= threads
    return tuple(models)
