"""Step: make one candidate's GGUF with the engine's llama-quantize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cook.engines import tool_runs
from cook.engines.base import Engine, QuantizeJob, QuantizeResult, TypeRule
from cook.graph.step import Input, JsonValue, Source, Step, Workbench
from cook.steps.imatrix import ImatrixStep

MODEL_FILE = "model.gguf"


@dataclass(frozen=True)
class QuantizeStep(Step[QuantizeResult]):
    """``source`` with base type ``ftype`` and ``rules``; artifact ``model.gguf``.

    ``expected`` (tensor, type) pairs are what the rules resolved to; the engine's log and the
    written file are compared with them. The number of threads stays out of the key:
    llama-quantize works row by row and its bytes do not depend on it.
    """

    engine: Engine
    quant: str
    source: Source
    imatrix: ImatrixStep | Source | None
    ftype: str
    rules: tuple[TypeRule, ...]
    expected: tuple[tuple[str, str], ...]
    predicted_tensor_bytes: int | None
    pure: bool = False
    allow_requantize: bool = False

    kind: ClassVar[str] = "quantize"
    result_type: ClassVar[type] = QuantizeResult

    @property
    def label(self) -> str:
        return f"quantize {self.quant} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Input]:
        inputs: dict[str, Input] = {"source": self.source}
        if self.imatrix is not None:
            inputs["imatrix"] = self.imatrix
        return inputs

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "ftype": self.ftype,
            "rules": [[rule.pattern, rule.type] for rule in self.rules],
            "pure": self.pure,
            "allow_requantize": self.allow_requantize,
        }

    def work(self) -> float:
        return float(self.source.size_bytes)

    def predicted_bytes(self) -> int | None:
        return self.predicted_tensor_bytes

    def job(self, output: Any, imatrix: Any, threads: int) -> QuantizeJob:
        """The engine's job, also used to print the exact command."""
        return QuantizeJob(
            source=self.source.path,
            output=output,
            ftype=self.ftype,
            rules=self.rules,
            imatrix=imatrix,
            threads=threads,
            expected=dict(self.expected),
            allow_requantize=self.allow_requantize,
            pure=self.pure,
        )

    def run(self, bench: Workbench) -> QuantizeResult:
        imatrix = None
        if isinstance(self.imatrix, ImatrixStep):
            imatrix = bench.file(self.imatrix, self.imatrix.file_name)
        elif self.imatrix is not None:
            imatrix = self.imatrix.path
        job = self.job(bench.directory / MODEL_FILE, imatrix, bench.threads)
        result = tool_runs.quantize(self.engine, job, bench.supervisor)
        return replace(result, warnings=tuple(w for w in result.warnings if not _usual(w)))


def _usual(warning: str) -> bool:
    """No imatrix ever covers the embeddings, nor the output unless asked: no news."""
    return warning.startswith(("token_embd.weight: ", "output.weight: ")) and "imatrix" in warning
