"""Whether a draft, or a target, goes with a trace: the same tokens, by the engines' own rule."""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.trace_file import TraceFile
from cook.formats.vocabulary import compare, read_vocabulary
from cook.graph.step import Source
from cook.trace.session import sha256


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
    differences = compare(target, ours, flavour)
    if differences:
        raise InputError(
            f"{draft}: cannot draft for {trace.header.target_name}: " + "; ".join(differences[:6]),
            hint="a draft needs its target's vocabulary; choose one of the same family",
        )


def require_target(trace: TraceFile, path: Path, target: Source) -> None:
    """InputError, with the reason, when ``trace`` is of another target, tokenizer or template."""
    file = read_gguf(path)
    template = sha256(file.string("tokenizer.chat_template") or "")
    trace.require(
        tokenizer_sha256=read_vocabulary(file).digest,
        template_sha256=template if trace.header.chat else None,
        target_sha256=target.digest,
    )
