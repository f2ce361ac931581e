"""What engine programs find: their environment, which is little, and nothing that changes what they
do; and how many threads they take by default.

Both engines take options from ``LLAMA_ARG_*`` variables (``LLAMA_ARG_MODEL_URL`` downloads),
mainline also from ``config.ini`` under ``~/.config``
(docs/internals/engines.md#environment-and-configuration): only what is listed here passes, and no
variable that makes the engine load a library, run a program or write a file.
"""

from __future__ import annotations

import os
from pathlib import Path

from cook.paths import cook_home

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")

_PASS = frozenset({"PATH", "TMPDIR", "TZ", "LD_LIBRARY_PATH"})
# Devices and thread libraries are configured by these; a driver may need any of them.
_PASS_PREFIXES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "VK_", "SYCL_"),
    *("ONEAPI_", "ZE_", "UR_", "GGML_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
# By the getenv calls of both engines' sources, and by the documents of CUDA, ROCm and OpenMP.
_BLOCK = frozenset(
    {
        "GGML_BACKEND_PATH",  # loads a library
        "GGML_ET_KERNELS_PATH",  # loads code
        "GGML_ET_PROFILE",  # writes a file
        "GGML_OPENCL_KERNEL_CACHE_DIR",  # writes and loads code
        "GGML_BACKTRACE_LLDB",  # runs a debugger
        "CUDA_INJECTION32_PATH",
        "CUDA_INJECTION64_PATH",
        "HSA_TOOLS_LIB",
        "OMP_TOOL_LIBRARIES",
    }
)


def user_settings() -> dict[str, str]:
    """What the user says of devices and threads by variables, by which times differ."""
    given = os.environ.items()
    return {k: v for k, v in sorted(given) if k.startswith(_PASS_PREFIXES) and k not in _BLOCK}


def engine_environment(
    library_path: tuple[Path, ...] = (), *, repack: bool = True, home: Path | None = None
) -> dict[str, str]:
    """The whole environment of an engine's tool.

    ``library_path``: directories the loader needs to find the engine's own libraries. ``home``: a
    directory without configuration, by default one under cook's own.
    ``repack=False`` keeps mainline off AMX where the processor refuses it.
    """
    env = {key: value for key, value in os.environ.items() if key in _PASS} | user_settings()
    if home is None:
        home = cook_home() / "engine-home"
        home.mkdir(parents=True, exist_ok=True)
    where = str(home)
    env |= {
        "HOME": where,
        "XDG_CONFIG_HOME": where,
        "XDG_CACHE_HOME": where,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "GGML_NO_BACKTRACE": "1",
        # Large buffers begin at one place in a cache line, not where the heap has room, which moves
        # speeds by a tenth (docs/internals/engines.md#where-buffers-lie).
        "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072",
    }
    if library_path:
        inherited = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
        env["LD_LIBRARY_PATH"] = ":".join([*map(str, library_path), *inherited])
    if not repack:
        env["LLAMA_ARG_REPACK"] = "0"
    return env


_SYSTEM = Path("/sys/devices")


def engine_threads(system: Path = _SYSTEM) -> int:
    """The number that both engines' tools take by default: physical cores, of a processor with
    efficiency cores those that are none (``cpu_get_num_math`` of their ``common.cpp``)."""
    siblings: list[str] = []
    while (
        listed := _read(system / f"system/cpu/cpu{len(siblings)}/topology/thread_siblings")
    ) != "":
        siblings.append(listed)
    efficient: set[int] = set()
    for part in filter(None, _read(system / "cpu_atom/cpus").split(",")):  # 16-23,30
        first, _, last = part.partition("-")
        efficient.update(range(int(first), int(last or first) + 1))
    if efficient and len(os.sched_getaffinity(0)) == len(siblings):
        count = cpu = 0
        while cpu < len(siblings):  # as they count: the sibling of a core is passed over
            count, cpu = (count, cpu + 1) if cpu in efficient else (count + 1, cpu + 2)
        return count
    if siblings:
        return len(set(siblings))
    logical = os.cpu_count() or 4
    return logical if logical <= 4 else logical // 2


def default_threads(system: Path = _SYSTEM) -> int:
    """Threads of a model whose arguments name none, in the servers and in the worker.

    As many as the engine takes by default, but no more than this process may use, which the
    engines do not look at.
    """
    return min(engine_threads(system), len(os.sched_getaffinity(0)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
