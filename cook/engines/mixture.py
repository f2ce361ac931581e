"""What an engine's built-in mixture of a base type gives each tensor, without quantizing.

``llama-quantize --dry-run`` reads metadata only on mainline, so the answer takes a moment even
for the largest source, and is kept. On ik a dry run reads and checks all weights, so there it is
asked of a stand-in: the same metadata and tensors, of few rows and zeros. A mixture goes by names,
metadata and columns; rows decide only whether interleaved types divide them, by 16 at most
(``llama_tensor_get_type`` and ``interleaved_properties`` in src/llama-quantize.cpp).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from cook.engines.base import Engine, QuantizeJob
from cook.engines.process.outcome import ProcessSpec
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import parse_quantize_log
from cook.errors import StepError
from cook.files import atomic_write
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import NewTensor, write_gguf_file
from cook.formats.quant_types import Flavour
from cook.paths import cook_home

ROWS = 16
"""Interleaved types take their rows 4, 8 or 16 at a time."""
MOST_BYTES = 4 << 30
"""Of a stand-in: that of Ling-1T (1,103 tensors, 2 TB) has 182 MB, written in half a second."""
CHUNK_BYTES = 1 << 20


def mixture_types(
    engine: Engine, job: QuantizeJob, source_key: str, part: GgufFile | None = None
) -> Mapping[str, str]:
    """Tensor -> type that ``job`` would write, of its source or of ``part`` of it alone.

    ``job.imatrix`` says only whether there will be one: it changes the mixture of some types
    (``has_imatrix`` in src/llama-quant.cpp), and need not exist yet. ``source_key`` names the
    source's content. StepError when the dry run fails.
    """
    asked = [source_key, job.ftype, [[r.pattern, r.type] for r in job.rules], bool(job.imatrix)]
    if part is not None:
        asked.append([tensor.name for tensor in part.tensors])
    text = json.dumps([engine.identity.digest, *asked])
    memo = cook_home() / "cache" / "mixtures" / hashlib.sha256(text.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memo.read_text())
        if isinstance(known, dict):
            return {str(name): str(type_name) for name, type_name in known.items()}
    types = _dry_run(engine, job, part)
    memo.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(memo) as file:
        file.write(json.dumps(types).encode())
    return types


def _dry_run(engine: Engine, job: QuantizeJob, part: GgufFile | None) -> dict[str, str]:
    import numpy as np

    from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_dat, write_gguf

    supervisor = Supervisor(cook_home() / "logs" / "dry-run")
    with tempfile.TemporaryDirectory(prefix="cook-dry-run-") as folder:
        job = replace(
            job,
            imatrix=Path(folder) / "any-imatrix" if job.imatrix else None,
            output=Path(folder) / "never-written.gguf",
        )
        if job.imatrix is not None:
            # With one entry that no tensor has: that there is one is all that is asked.
            entry = ImatrixEntry(sums=np.ones((1, 32), np.float32), counts=np.ones(1, np.float32))
            write = write_dat if engine.flavour is Flavour.IK_LLAMA_CPP else write_gguf
            write(Imatrix({"none.weight": entry}, ("none",), 1, 512, "gguf"), job.imatrix)
        flags = ["--dry-run"]
        if engine.flavour is Flavour.IK_LLAMA_CPP:
            # It would miss the entries that the imatrix will have; which type a tensor gets does
            # not hang on them.
            flags.append("--ignore-imatrix-rules")
        if part is not None or engine.flavour is Flavour.IK_LLAMA_CPP:
            source = _few_rows(part or read_gguf(job.source), Path(folder))
            job = replace(job, source=source)
        program, *words = engine.quantize_command(job)
        argv = (program, *flags, *words)
        result = supervisor.run(ProcessSpec(argv, "dry-run", engine.environment())).check()
        log = result.stderr.read_text(encoding="utf-8", errors="replace")
    return parse_quantize_log(log).types


def _few_rows(source: GgufFile, folder: Path) -> Path:
    """``source`` with at most :data:`ROWS` rows in a tensor, all of them zeros."""
    metadata = {k: source.raw_value(k) for k in source.metadata if not k.startswith("split.")}
    path = folder / "few-rows.gguf"
    tensors = []
    for tensor in source.tensors:
        shape = tensor.shape
        if len(shape) > 1:
            shape = (shape[0], (shape[1] - 1) % ROWS + 1, *(1 for _ in shape[2:]))
        size = replace(tensor, shape=shape).size_bytes
        if size is None:
            raise StepError(
                f"{source.path}: {tensor.name} is of {tensor.type_name}, which cook does not know"
            )
        zeros = partial(map, bytes, [CHUNK_BYTES] * (size // CHUNK_BYTES) + [size % CHUNK_BYTES])
        tensors.append(NewTensor(tensor.name, shape, tensor.type_id, size, zeros))
    if sum(tensor.size_bytes for tensor in tensors) > MOST_BYTES:
        raise StepError(
            f"{source.path}: {ROWS} rows of each tensor are above {MOST_BYTES >> 30} GiB, which no "
            "model's are",
            hint=f"cook inspect {source.path}",
        )
    write_gguf_file(path, metadata, tensors, alignment=source.alignment, durable=False)
    return path
