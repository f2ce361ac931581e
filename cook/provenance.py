"""Where and with what a result was made: the machine and this cook."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cook


@dataclass(frozen=True)
class Machine:
    """The machine that timings belong to. ``memory_bytes`` is physical memory."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    accelerators: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Timings are never reused where this differs."""
        text = "|".join(
            [self.processor, str(self.cores), str(self.memory_bytes >> 28), *self.accelerators]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class HubOrigin:
    """What an ``hf://`` reference of a recipe meant on the day.

    ``role`` is the reference's place in the recipe (``model``, ``target``, a draft's name ...);
    ``files`` are (path in the repository, SHA-256 where the Hub's large-file storage has it).
    """

    role: str
    reference: str
    commit: str
    files: tuple[tuple[str, str | None], ...]
    size_bytes: int
    signature: str | None = None
    """Who signed for published tensors, or why that is not known."""

    @property
    def pinned(self) -> bool:
        """Whether the reference names this very commit, and can never mean another."""
        return f"@{self.commit}" in self.reference


@lru_cache(maxsize=1)
def machine() -> Machine:
    """This machine, as the operating system describes it."""
    # NVIDIA devices as the driver lists them; other makers' devices are not listed yet.
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return Machine(
        processor=_stated(Path("/proc/cpuinfo"), "model name")
        or platform.processor()
        or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        accelerators=tuple(name for file in devices if (name := _stated(file, "Model"))),
    )


def available_memory_bytes() -> int | None:
    """Memory that could be taken without swapping (Linux ``MemAvailable``), or None."""
    found = _stated(Path("/proc/meminfo"), "MemAvailable")
    return int(found.removesuffix(" kB")) * 1024 if found else None


def cook_version() -> str:
    """Version of this cook."""
    return cook.__version__


def install_command(extra: str) -> str:
    """The command that installs what an optional part of cook needs."""
    return f"pip install 'cook-gguf[{extra}]'"


def _stated(path: Path, name: str) -> str | None:
    """The value of the first line ``name: ...`` of a file; None without one."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
