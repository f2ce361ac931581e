"""What a quantization is asked to do, and which of the engine's warnings are news."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines import tool_runs
from cook.engines.base import QuantizeJob, QuantizeResult, TypeRule
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.graph.step import Source, Workbench
from cook.steps.quantize import MODEL_FILE, QuantizeStep
from tests.pieces import pieces_in

SOURCE = Source(Path("/models/draft.gguf"), "sha256:aa", 1000)
IMATRIX = Source(Path("/models/imatrix.gguf"), "sha256:bb", 10)
NO_NEWS = "token_embd.weight: no entry in the imatrix"
NEWS = "blk.0.attn_q.weight: no entry in the imatrix"


def test_the_job_is_the_step_and_usual_warnings_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[QuantizeJob] = []

    def quantize(_engine: object, job: QuantizeJob, _: Supervisor) -> QuantizeResult:
        jobs.append(job)
        return QuantizeResult({}, 9, 1.0, 1, ("q",), (NO_NEWS, NEWS, "output.weight: odd shape"))

    monkeypatch.setattr(tool_runs, "quantize", quantize)
    engine: Any = SimpleNamespace(name="e")
    step = QuantizeStep(
        engine=engine,
        quant="mine",
        source=SOURCE,
        imatrix=IMATRIX,
        ftype="Q4_K_M",
        rules=(TypeRule("ffn_.*", "q6_K"),),
        expected=(("blk.0.ffn_up.weight", "q6_K"),),
        predicted_tensor_bytes=77,
    )

    def nothing(_: object) -> Any:
        raise AssertionError("the imatrix is a file: nothing was made before")

    workers = KeptWorkers(tmp_path / "workers")
    bench = Workbench(
        tmp_path,
        Supervisor(tmp_path / "logs"),
        workers,
        nothing,
        3,
        lambda share: None,
        pieces_in(tmp_path / "store"),
    )
    assert step.run(bench).warnings == (NEWS, "output.weight: odd shape")
    (job,) = jobs
    assert (job.source, job.imatrix) == (SOURCE.path, IMATRIX.path)
    assert job.output == tmp_path / MODEL_FILE
    assert (job.threads, job.ftype, job.rules) == (3, "Q4_K_M", step.rules)
    assert job.expected == {"blk.0.ffn_up.weight": "q6_K"}
    assert step.predicted_bytes() == 77
