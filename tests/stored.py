"""Artifacts of a store, without a step that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cook.graph.store import Artifact, Entry, Store, key_of


def stored(
    store: Store, files: Mapping[str, bytes], parts: Mapping[str, Any] | None = None, **fields: Any
) -> Artifact:
    """``files`` under the key of ``parts``; ``fields`` of its :class:`Entry`."""
    parts = parts or {}
    usual: dict[str, Any] = {
        "kind": "quantize",
        "key": key_of(parts),
        "label": "quantize X",
        "key_parts": parts,
        "made_from": {},
        "result": {},
        "seconds": 1.0,
    }
    with store.workspace() as directory:
        for name, data in files.items():
            (directory / name).write_bytes(data)
        return store.commit(directory, Entry(**usual | fields))
