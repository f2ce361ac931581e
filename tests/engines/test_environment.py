"""What of a user's shell reaches an engine's program: little, and nothing that does harm."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from cook.engines.environment import default_threads, engine_environment, engine_threads
from cook.engines.process.outcome import ProcessSpec
from cook.engines.process.supervisor import Supervisor

RECORDED = Path(__file__).parent / "standins" / "recorded"
OF_THE_HELP = sorted(
    {
        name
        for file in RECORDED.glob("*/*.txt")
        for name in re.findall(r"\benv: ([A-Z_0-9]+)", file.read_text(errors="replace"))
    }
)
OTHERS = (
    *("LLAMA_ARG_NO_MMAP", "LLAMA_OFFLINE", "LLAMA_CACHE", "LLAMA_HOTSWAP_CONTROL_FILE"),
    *("LLAMA_PERPLEXITY_PRE_RELOAD_SCRIPT", "HF_TOKEN", "HF_HOME", "HF_ENDPOINT"),
    *("HUGGING_FACE_HUB_TOKEN", "MODEL_ENDPOINT", "GGML_BACKEND_PATH", "GGML_ET_KERNELS_PATH"),
    *("GGML_OPENCL_KERNEL_CACHE_DIR", "CUDA_INJECTION64_PATH", "HSA_TOOLS_LIB"),
    *("OMP_TOOL_LIBRARIES", "LD_PRELOAD", "LD_AUDIT", "XDG_CONFIG_HOME", "BASH_ENV"),
    *("http_proxy", "HTTPS_PROXY", "ALL_PROXY", "COOK_API_KEY"),
)


def test_no_variable_of_the_engines_reaches_a_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {"LLAMA_ARG_MODEL_URL", "LLAMA_ARG_HF_REPO", "HF_TOKEN"} <= set(OF_THE_HELP)
    hostile = f"http://127.0.0.1:1/{tmp_path.name}"
    for name in (*OF_THE_HELP, *OTHERS):
        monkeypatch.setenv(name, hostile)
    passing = ("CUDA_VISIBLE_DEVICES", "GGML_CUDA_DISABLE_GRAPHS", "OMP_NUM_THREADS")
    for name in passing:
        monkeypatch.setenv(name, "1")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    argv = (sys.executable, "-IS", "-c", code)
    result = Supervisor(tmp_path).run(ProcessSpec(argv, "env", engine_environment())).check()
    seen = json.loads(result.stdout.read_text())
    assert [name for name, value in seen.items() if hostile in value] == []
    assert [seen[name] for name in (*passing, "GGML_NO_BACKTRACE")] == ["1"] * 4
    assert seen["HOME"] == seen["XDG_CONFIG_HOME"]
    assert list(Path(seen["HOME"]).iterdir()) == []


ALLOCATING = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(1 << 24))  # from now on glibc would take smaller blocks from the heap
print(*(libc.malloc(200_000 + 16 * i) % 64 for i in range(8)))
"""


def test_large_buffers_begin_at_one_place_in_a_cache_line(tmp_path: Path) -> None:
    environment = dict(engine_environment())
    places = []
    for _ in range(2):
        argv = (sys.executable, "-IS", "-c", ALLOCATING)
        result = Supervisor(tmp_path).run(ProcessSpec(argv, "allocating", environment)).check()
        places.append(set(result.stdout.read_text().split()))
        environment.pop("GLIBC_TUNABLES", None)
    assert places[0] == {"16"}
    assert len(places[1]) > 1, "else the variable does nothing"


@pytest.mark.parametrize(
    ("siblings", "efficient", "usable", "threads", "default"),
    [
        (["11", "22", "44", "88"] * 2, "", 8, 4, 4),
        (["03", "03", "0c", "0c", "10", "20", "40", "80"], "4-6,7", 8, 2, 2),
        (["1", "2", "4", "8"], "", 2, 4, 2),
        ([], "", 99, 8, 8),
    ],
    ids=["two threads a core", "efficiency cores", "not all usable", "none listed"],
)
def test_threads_are_cores(
    siblings: list[str],
    efficient: str,
    usable: int,
    threads: int,
    default: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a /sys/devices with one processor for each of ``siblings``."""
    for number, listed in enumerate(siblings):
        topology = tmp_path / f"system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings").write_text(f"{listed}\n")
    if efficient:
        (tmp_path / "cpu_atom").mkdir()
        (tmp_path / "cpu_atom/cpus").write_text(f"{efficient}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert (engine_threads(tmp_path), default_threads(tmp_path)) == (threads, default)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert siblings or engine_threads(tmp_path) == 4
