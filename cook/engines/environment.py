"""The environment that engine programs get: little, and nothing that changes what they do.

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


def engine_environment(
    library_path: tuple[Path, ...] = (), *, repack: bool = True, home: Path | None = None
) -> dict[str, str]:
    """The whole environment of an engine's tool.

    ``library_path``: directories the loader needs to find the engine's own libraries. ``home``: a
    directory without configuration, by default one under cook's own.
    ``repack=False`` keeps mainline off AMX where the processor refuses it.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in _BLOCK and (key in _PASS or key.startswith(_PASS_PREFIXES))
    }
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
    }
    if library_path:
        inherited = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
        env["LD_LIBRARY_PATH"] = ":".join([*map(str, library_path), *inherited])
    if not repack:
        env["LLAMA_ARG_REPACK"] = "0"
    return env
