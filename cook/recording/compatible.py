"""Whether a draft can be scored on a trace: the same tokens, by the engines' own rule."""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.trace import TraceFile
from cook.vocabulary import compare, read_vocabulary


def require_draft(trace: TraceFile, draft: Path, flavour: str | None = None) -> None:
    """InputError, with the tokens that differ, for a draft of another vocabulary.

    Only headers are read. A trace that does not know its target's tokens (recorded over HTTP
    without --tokenizer) still refuses drafts of another size.
    """
    ours = read_vocabulary(read_gguf(draft))
    target = trace.vocabulary
    if target is None:
        size = trace.header.vocabulary_size
        if abs(size - ours.size) > 128:
            raise InputError(
                f"{draft}: cannot draft for {trace.header.target_name}: "
                f"it has {ours.size} tokens, the target {size}",
                hint="a draft needs its target's vocabulary; choose one of the same family",
            )
        return
    differences = compare(target, ours, flavour=flavour)
    if differences:
        raise InputError(
            f"{draft}: cannot draft for {trace.header.target_name}: "
            + "; ".join(str(d) for d in differences[:6]),
            hint="a draft needs its target's vocabulary; choose one of the same family",
        )
