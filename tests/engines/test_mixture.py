"""What a dry run says of a mixture is kept, and takes a moment on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.engines.base import Engine, QuantizeJob
from cook.engines.mixture import mixture_types
from cook.engines.tool_output import parse_quantize_log
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_dat
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir

LINE = "[   1/  21]  a.weight - [  256,   64,     1,     1], type =    f16, size = 0.031 MiB ({})"
TOOL = """#!{python}
import sys
with open({calls!r}, "a") as calls:
    print(*sys.argv[1:], file=calls)
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

    return SimpleNamespace(
        flavour=Flavour.LLAMA_CPP,
        identity=SimpleNamespace(digest="d"),
        quantize_command=command,
        environment=lambda: {"PATH": os.environ["PATH"]},
    )


def job(imatrix: Path | None = None, ftype: str = "Q4_K_M") -> QuantizeJob:
    return QuantizeJob(Path("/m/a.gguf"), Path("/m/out.gguf"), ftype, (), imatrix, 1, {})


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


@pytest.mark.ik
@pytest.mark.parametrize("imatrix", [None, Path("/not/made/yet")])
def test_few_rows_get_the_types_of_the_whole_model(
    ik_engine: Engine, tmp_path: Path, calls: Path, imatrix: Path | None
) -> None:
    """Held against a dry run on all the weights."""
    source, made = demo_dir() / "draft-f16.gguf", tmp_path / "any.dat"
    entry = ImatrixEntry(sums=np.ones((1, 32), np.float32), counts=np.ones(1, np.float32))
    write_dat(Imatrix({"none.weight": entry}, ("none",), 1, 512, "dat"), made)
    bases = [b for b in sorted(ik_engine.facts.ftypes) if b not in ("COPY", "F16", "F32")]
    assert len(bases) > 60
    for base in bases:
        one = replace(job(imatrix, base), source=source)
        few = mixture_types(ik_engine, one, "source")
        whole = replace(one, imatrix=made if imatrix else None, output=tmp_path / "no.gguf")
        program, *words = ik_engine.quantize_command(whole)
        argv = [program, "--dry-run", "--ignore-imatrix-rules", *words]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=True)
        assert few == parse_quantize_log(done.stderr).types, base
        assert set(few) == {t.name for t in read_gguf(source).tensors}
