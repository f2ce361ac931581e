"""Which target goes with a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, write_gguf_file
from cook.formats.trace_file import TraceFile, TraceWriter
from cook.formats.vocabulary import read_vocabulary
from cook.graph.step import Source, source
from cook.trace.compatible import require_target
from cook.trace.session import sha256
from tests.traces import server_header


@pytest.fixture
def target(tmp_path: Path) -> Source:
    metadata = {
        "general.architecture": encode("llama"),
        "tokenizer.ggml.model": encode("gpt2"),
        "tokenizer.ggml.tokens": encode(["a", "b"]),
        "tokenizer.chat_template": encode("{{ messages }}"),
    }
    path = tmp_path / "target.gguf"
    write_gguf_file(path, metadata, ())
    return source([path])


def trace_of(target: Source, **changes: str | None) -> TraceFile:
    known = {
        "target_sha256": target.digest,
        "tokenizer_sha256": read_vocabulary(read_gguf(target.path)).digest,
        "template_sha256": sha256("{{ messages }}"),
    }
    path = target.path.with_name(f"{len(changes)}.trace")
    TraceWriter(path, server_header(**known | changes)).close()
    return TraceFile(path)


def test_a_trace_goes_with_its_own_target(target: Source) -> None:
    require_target(trace_of(target), target.path, target)
    # What an HTTP recording does not know is not compared.
    trace = trace_of(target, target_sha256=None, tokenizer_sha256=None, template_sha256=sha256(""))
    require_target(trace, target.path, target)


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("target_sha256", "target"),
        ("tokenizer_sha256", "tokenizer"),
        ("template_sha256", "chat template"),
    ],
)
def test_another_target_is_refused_with_what_differs(target: Source, field: str, what: str) -> None:
    with pytest.raises(InputError, match=f"another {what} .*{what} ffffffffffff, not "):
        require_target(trace_of(target, **{field: "f" * 64}), target.path, target)
