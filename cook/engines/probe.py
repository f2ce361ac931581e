"""Questions put to an engine's binaries, each answered by a short-lived child process.

What a file is named or where it lies is never trusted: flavour, version, types and flags are
what the binaries say of themselves.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cook.engines.environment import loader_environment
from cook.engines.outcome import Outcome
from cook.engines.process import ProcessResult, ProcessSpec, Supervisor
from cook.errors import PrerequisiteError

_TIMEOUT_S = 60.0
_FLAG = re.compile(r"(?<![\w<\[|/.-])(--?[A-Za-z][\w-]*)")
_FTYPE = re.compile(r"^\s+(?:\d+\s+or\s+)?([A-Z][A-Z0-9_]*[A-Z0-9])\s+:?", re.MULTILINE)
_LOADED = re.compile(r"^\s*(\S+) => (not found|\S+)", re.MULTILINE)
_BUILD_ML = re.compile(r"version: ([^\s(]+(?: [^\s(]+)*) \(build (\d+), commit ([0-9a-f]+|\w+)\)")
_BUILD = re.compile(r"version: (\d+) \(([0-9a-zA-Z.-]+)\)")

# Internal layouts: ggml knows them, llama-quantize cannot write them (it aborts).
_INTERNAL = re.compile(r"^(?:q8_1|q8_K|q8_K\d+|q8_KR8|.*_x4|i2_s|q4_0_\dx\d|i\d+|f64)$")
_TYPE_NAME = re.compile(r"^(?:[a-z]{0,4}q\d|[a-z]{2}fp\d|bf16|f16|f32)[A-Za-z0-9_]*$")

# Ids are sparse (ik goes to 399) and the engines do not check their range, so the child asks
# upward, prints as it goes, and may die past the end of the table.
_TYPES_CHILD = """\
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.ggml_type_name.restype = ctypes.c_char_p
lib.ggml_blck_size.restype = ctypes.c_int64
lib.ggml_type_size.restype = ctypes.c_size_t
lib.ggml_is_quantized.restype = ctypes.c_bool
for i in range(512):
    name = lib.ggml_type_name(i)
    if name:
        row = (name.decode("ascii", "replace")[:80], i, lib.ggml_blck_size(i),
               lib.ggml_type_size(i), int(lib.ggml_is_quantized(i)))
        print(*row, sep="\\t", flush=True)
"""

# Executes the instruction that mainline's AMX path starts with. Some virtual machines
# advertise AMX, grant the permission, and then fault (docs/internals/engines.md#amx).
_AMX_CHILD = """\
import ctypes, mmap
libc = ctypes.CDLL(None)
if libc.syscall(158, 0x1023, 18) != 0:
    raise SystemExit(1)
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("c4e27849 07 c4e27849c0 31c0 c3".replace(" ", "")))
config = (ctypes.c_uint8 * 64)(); config[0] = 1; config[16] = 64; config[48] = 16
entry = ctypes.addressof(ctypes.c_char.from_buffer(code))
ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(entry)(ctypes.addressof(config))
"""
_LDTILECFG = b"\xc4\xe2\x78\x49"


@dataclass(frozen=True)
class Libraries:
    """Engine libraries a tool loads, and what the loader needs to find them."""

    paths: frozenset[Path]
    missing: tuple[str, ...]


class Prober:
    """Asks binaries; every program runs under a supervisor with a temporary log folder."""

    def __init__(self, env: Mapping[str, str], log_dir: Path) -> None:
        self.env, self._supervisor = dict(env), Supervisor(log_dir)

    def libraries(self, tool: Path, roots: tuple[Path, ...]) -> Libraries:
        """Engine libraries that the loader resolves for ``tool`` (those under ``roots`` or
        named like an engine's). PrerequisiteError where the file cannot run here."""
        result = self._run((str(tool),), loader_environment(self.env), guard=False)
        if result.outcome is Outcome.UNRUNNABLE:
            result.check()
        text = result.stdout.read_text(errors="replace")
        paths, missing = set(), []
        for name, where in _LOADED.findall(text):
            if where == "not found":
                missing.append(name)
                continue
            path = Path(where).resolve()
            if is_engine_library(name) or any(path.is_relative_to(root) for root in roots):
                paths.add(path)
        return Libraries(frozenset(paths), tuple(missing))

    def help_text(self, tool: Path) -> str:
        """What ``tool --help`` says; llama-quantize does so with exit status 1."""
        result = self._run((str(tool), "--help"), self.env)
        if result.outcome not in (Outcome.OK, Outcome.TOOL_ERROR):
            result.check()
        return result.stdout.read_text(errors="replace") + result.stderr.read_text(errors="replace")

    def build(self, server: Path) -> tuple[str, str | None]:
        """``(build, commit)`` by ``--version``: ``("0.5.0-dev b1 (0c1e570)", "0c1e570")``."""
        result = self._run((str(server), "--version"), self.env).check()
        text = result.stderr_tail + "\n" + result.stdout_tail
        return parse_build(text)

    def types(self, library: Path) -> dict[str, int]:
        """Tensor types that can be written, by exact name, from the engine's ggml library."""
        argv = (sys.executable, "-I", "-S", "-c", _TYPES_CHILD, str(library))
        text = self._run(argv, self.env).stdout.read_text(errors="replace")
        return parse_types(text)

    def amx_refused(self, cpu_library: Path | None) -> bool:
        """Whether this build would run AMX code that this machine refuses."""
        if cpu_library is None or not _has_amx():
            return False
        if _LDTILECFG not in cpu_library.read_bytes():
            return False
        argv = (sys.executable, "-I", "-S", "-c", _AMX_CHILD)
        return self._run(argv, self.env).outcome is not Outcome.OK

    def _run(
        self, argv: tuple[str, ...], env: Mapping[str, str], guard: bool = True
    ) -> ProcessResult:
        spec = ProcessSpec(
            argv, f"probe-{Path(argv[0]).name}", env, timeout_s=_TIMEOUT_S, guard=guard
        )
        return self._supervisor.run(spec)


def temporary_logs() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cook-probe-")


def is_engine_library(name: str) -> bool:
    return re.match(r"lib(?:llama|ggml|mtmd)[-_.]", name) is not None


def parse_build(text: str) -> tuple[str, str | None]:
    """Build and commit from the text of ``--version``; PrerequisiteError when it has none."""
    if found := _BUILD_ML.search(text):
        version, number, commit = found.groups()
        return f"{version} b{number} ({commit})", _commit(commit)
    if found := _BUILD.search(text):
        number, commit = found.groups()
        return f"b{number} ({commit})", _commit(commit)
    raise PrerequisiteError("the engine does not tell its version: not a llama.cpp-family build?")


def _commit(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{7,40}", text) else None


def parse_types(text: str) -> dict[str, int]:
    """Writable types from the child's rows, dropping what past-the-end reads made up."""
    types: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 5 or not all(f.isdecimal() for f in fields[1:]):
            continue
        name, number, block, size, quantized = fields[0], *map(int, fields[1:])
        sane = block in (1, 16, 32, 64, 128, 256, 512) and 0 < size < 1 << 16
        known = _TYPE_NAME.match(name) and not _INTERNAL.match(name)
        if sane and known and (quantized or name in ("f32", "f16", "bf16", "bf16_r16")):
            types.setdefault(name, number)
    return types


def parse_flags(text: str) -> frozenset[str]:
    """Flags that a tool's help offers; those it lists only to say they were removed are not."""
    flags: set[str] = set()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        stripped = line.lstrip(" \t*|[")
        usage = "[--" in line
        if not stripped.startswith("-") and not usage:
            continue
        if "argument has been removed" in " ".join(lines[number : number + 2]):
            continue
        # A definition is the flags before the first run of spaces; the rest is prose.
        head = stripped if usage else re.split(r"\s{2,}(?![\s-])|: ", stripped, maxsplit=1)[0]
        flags.update(_FLAG.findall(head))
    return frozenset(flags)


def parse_ftypes(text: str) -> frozenset[str]:
    """Base types from the help of llama-quantize."""
    _, _, listing = text.lower().partition("allowed quantization types")
    return frozenset(_FTYPE.findall(text[len(text) - len(listing) :])) if listing else frozenset()


def _has_amx() -> bool:
    try:
        return b" amx_tile" in Path("/proc/cpuinfo").read_bytes()[: 1 << 20]
    except OSError:
        return False
