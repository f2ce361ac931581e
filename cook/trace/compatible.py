"""Whether a draft, or a target, goes with a trace: the same tokens, by the engines' own rule."""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.heads import require_model
from cook.formats.trace_file import TraceFile
from cook.formats.vocabulary import Vocabulary, compare, read_vocabulary
from cook.graph.step import Source
from cook.trace.session import sha256


def require_one_vocabulary(
    target: Vocabulary, name: object, draft: GgufFile, flavour: str | None = None
) -> None:
    """Refuse a draft for the target ``name`` that an engine would silently not use, or translate.

    docs/internals/engines.md#serving-without-drafting
    """
    if differences := compare(target, read_vocabulary(draft), flavour):
        raise _other_tokens(name, draft.path, "; ".join(map(str, differences[:5])))


def require_draft(trace: TraceFile, draft: Path, flavour: str | None = None) -> None:
    """InputError for a file that is no model, and for a draft of another vocabulary, with the
    tokens that differ.

    Only headers are read. A trace that does not know its target's tokens (recorded over HTTP
    without --tokenizer) still refuses drafts of another size.
    """
    header, file = trace.header, read_gguf(draft)
    require_model(file)
    if (target := trace.vocabulary) is not None:
        require_one_vocabulary(target, header.target_name, file, flavour)
    elif abs(header.vocabulary_size - (ours := read_vocabulary(file).size)) > 128:
        sizes = f"it has {ours} tokens, the target {header.vocabulary_size}"
        raise _other_tokens(header.target_name, draft, sizes)


def _other_tokens(target: object, draft: Path, how: str) -> InputError:
    return InputError(
        f"{draft}: cannot draft for {target}: {how}",
        hint="a draft needs its target's vocabulary; choose one of the same family",
    )


def require_target(trace: TraceFile, path: Path, target: Source) -> None:
    """InputError, with the reason, when ``trace`` is of another target, tokenizer or template.

    What the trace does not know (recorded over HTTP) is not compared.
    """
    file, header = read_gguf(path), trace.header
    template = sha256(file.string("tokenizer.chat_template") or "")
    for what, wanted, has in (
        ("tokenizer", read_vocabulary(file).digest, header.tokenizer_sha256),
        ("chat template", template, header.template_sha256 if header.chat else None),
        ("target", target.digest, header.target_sha256),
    ):
        if has is not None and wanted != has:
            digests = [digest.removeprefix("sha256:")[:12] for digest in (has, wanted)]
            raise InputError(
                f"{trace.path}: recorded with another {what} "
                f"({header.target_name}; {what} {digests[0]}, not {digests[1]})",
                hint="record a trace with this target: cook trace",
            )
