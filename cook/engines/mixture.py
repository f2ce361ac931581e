"""What llama.cpp's built-in mixture of a base type gives each tensor, without quantizing.

``llama-quantize --dry-run`` reads metadata only on mainline, so the answer takes a moment even
for the largest source, and is kept. On ik a dry run reads the whole source and demands the
imatrix: there the mixture stays unknown until the file is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cook.engines.base import Engine, QuantizeJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import parse_quantize_log
from cook.files import atomic_write
from cook.formats.quant_types import Flavour
from cook.paths import cook_home


def mixture_types(engine: Engine, job: QuantizeJob, source_key: str) -> Mapping[str, str] | None:
    """Tensor -> type that ``job`` would write; None where only the run itself can tell.

    ``job.imatrix`` says only whether there will be one: it changes the mixture of some types
    (``has_imatrix`` in src/llama-quant.cpp), and need not exist yet. ``source_key`` names the
    source's content. StepError when the dry run fails.
    """
    if engine.flavour is not Flavour.LLAMA_CPP:
        return None
    asked = [source_key, job.ftype, [[r.pattern, r.type] for r in job.rules], bool(job.imatrix)]
    text = json.dumps([engine.identity.digest, *asked])
    memo = cook_home() / "cache" / "mixtures" / hashlib.sha256(text.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memo.read_text())
        if isinstance(known, dict):
            return {str(name): str(type_name) for name, type_name in known.items()}
    types = _dry_run(engine, job)
    memo.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(memo) as file:
        file.write(json.dumps(types).encode())
    return types


def _dry_run(engine: Engine, job: QuantizeJob) -> dict[str, str]:
    from dataclasses import replace

    supervisor = Supervisor(cook_home() / "logs" / "dry-run")
    with tempfile.TemporaryDirectory(prefix="cook-dry-run-") as folder:
        imatrix = _any_imatrix(Path(folder)) if job.imatrix else None
        output = Path(folder) / "never-written.gguf"
        whole = engine.quantize_command(replace(job, imatrix=imatrix, output=output))
        argv = (whole[0], "--dry-run", *whole[1:])
        result = engine.run(supervisor, argv, "dry-run").check()
        log = result.stderr.read_text(encoding="utf-8", errors="replace")
    return parse_quantize_log(log).types


def _any_imatrix(folder: Path) -> Path:
    """An imatrix with one entry that no tensor has: that there is one is all that is asked."""
    import numpy as np

    from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf

    entry = ImatrixEntry(sums=np.ones((1, 32), np.float32), counts=np.ones(1, np.float32))
    path = folder / "any.gguf"
    write_gguf(Imatrix({"none.weight": entry}, ("none",), 1, 512, "gguf"), path)
    return path
