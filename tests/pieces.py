"""The pieces of a workbench that a test makes itself."""

from __future__ import annotations

from pathlib import Path

from cook.graph.piece import Pieces
from cook.graph.store import Store
from cook.output import Mode, Output


def pieces_in(folder: Path) -> Pieces:
    """In a store of its own, under ``folder``; says nothing."""
    return Pieces(Store(folder), Output(Mode.QUIET))
