"""What a dry run says of a mixture is kept; an engine whose dry run costs a run is not asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import QuantizeJob
from cook.engines.mixture import mixture_types
from cook.engines.process.outcome import ProcessResult, ProcessSpec
from cook.engines.process.supervisor import Supervisor
from cook.formats.quant_types import Flavour

LINE = "[   1/  21]  a.weight - [  256,   64,     1,     1], type =    f16, size = 0.031 MiB ({})"
TOOL = """#!{python}
import pathlib, sys
calls = pathlib.Path({calls!r})
calls.write_text(calls.read_text() + " ".join(sys.argv[1:]) + "\\n" if calls.exists()
                 else " ".join(sys.argv[1:]) + "\\n")
kind = "q6_K" if "--imatrix" in sys.argv else "q4_K"
sys.stderr.write({line!r}.format(kind) + "\\n")
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "calls"


@pytest.fixture
def engine(tmp_path: Path, calls: Path) -> Any:
    tool = tmp_path / "llama-quantize"
    tool.write_text(TOOL.format(python=sys.executable, calls=str(calls), line=LINE))
    tool.chmod(0o755)

    def command(job: QuantizeJob) -> tuple[str, ...]:
        extra = ("--imatrix", str(job.imatrix)) if job.imatrix else ()
        return (str(tool), *extra, str(job.source), str(job.output), job.ftype)

    def run(supervisor: Supervisor, argv: tuple[str, ...], name: str, **_: object) -> ProcessResult:
        return supervisor.run(ProcessSpec(argv, name, {"PATH": os.environ["PATH"]}))

    return SimpleNamespace(
        flavour=Flavour.LLAMA_CPP,
        identity=SimpleNamespace(digest="d"),
        quantize_command=command,
        run=run,
    )


def job(imatrix: Path | None = None, ftype: str = "Q4_K_M") -> QuantizeJob:
    return QuantizeJob(
        source=Path("/m/a.gguf"),
        output=Path("/m/out.gguf"),
        ftype=ftype,
        rules=(),
        imatrix=imatrix,
        threads=1,
        expected={},
    )


def test_asked_once_for_each_source_type_and_imatrix(engine: Any, calls: Path) -> None:
    assert mixture_types(engine, job(), "one") == {"a.weight": "q4_K"}
    assert mixture_types(engine, job(), "one") == {"a.weight": "q4_K"}
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("--dry-run ")
    mixture_types(engine, job(), "two")
    mixture_types(engine, job(ftype="Q5_K_M"), "one")
    assert len(calls.read_text().splitlines()) == 3


def test_an_imatrix_need_not_exist_to_change_the_mixture(engine: Any, calls: Path) -> None:
    assert mixture_types(engine, job(Path("/not/made/yet")), "one") == {"a.weight": "q6_K"}
    assert "/not/made/yet" not in calls.read_text()


def test_ik_is_not_asked(engine: Any, calls: Path) -> None:
    engine.flavour = Flavour.IK_LLAMA_CPP
    assert mixture_types(engine, job(), "one") is None
    assert not calls.exists()
