"""What is known of one engine build: gathered once, and remembered by its files.

What a file is named or where it lies is never trusted: flavour, version, types and flags are what
the binaries report, each question answered by a short-lived child process. That is a
dozen short programs (about a second); remembering costs one ``stat`` a file. What is remembered is
valid while every file of the engine has the same identity (:class:`cook.files.Identity`) and no
file was added to its directories.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.engines.environment import engine_environment
from cook.engines.process.outcome import Outcome
from cook.engines.process.supervisor import ask
from cook.engines.speculation import speculators_in_help
from cook.errors import InputError, PrerequisiteError
from cook.files import atomic_write, identity
from cook.files import digest as digest_of
from cook.formats.quant_types import Flavour
from cook.paths import cook_home

TOOLS = ("server", "quantize", "imatrix", "perplexity", "bench", "batched-bench")
# More tools, which count in the identity where present. cook runs only gguf-split, and no bench:
# without them the keys of all that was made with such a build would change.
OPTIONAL_TOOLS = ("sweep-bench", "spec-bench", "gguf-split")
_FORMAT = 7


@dataclass(frozen=True)
class Facts:
    """One engine build. ``files`` is name -> SHA-256 of what runs; ``digest`` sums them up.

    ``types`` are tensor types by their exact spelling, with their ids; ``ftypes`` the base types
    that llama-quantize takes; ``flags`` those in the help of each tool. ``speculators`` are the
    kinds of speculation of its server, ``defaults`` its defaults (flag -> value), by its help.
    """

    bin_dir: str
    library_dirs: tuple[str, ...]
    flavour: Flavour
    build: str
    commit: str | None
    digest: str
    files: dict[str, str]
    types: dict[str, int]
    ftypes: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    library_path: tuple[str, ...]
    repack: bool
    speculators: tuple[str, ...] = ()
    defaults: dict[str, str] = dataclasses.field(default_factory=dict)


def facts_of(directory: Path) -> Facts:
    """Facts of the engine in ``directory`` (a build directory or its ``bin``).

    Raises PrerequisiteError when it holds no engine, or one that cannot run here.
    """
    from pydantic import TypeAdapter

    bin_dir = find_bin_dir(directory)
    name = hashlib.sha256(str(bin_dir).encode()).hexdigest()[:24]
    cache = cook_home() / "cache" / "engines" / f"{name}.json"
    form: TypeAdapter[Facts] = TypeAdapter(Facts)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InputError):
        entry = json.loads(cache.read_bytes())
        stamps = entry["stamps"]
        if entry["format"] == _FORMAT and stamps == _stamps(bin_dir, stamps["files"]):
            return form.validate_python(entry["facts"])
    began = time.time()
    facts, files = _gather(bin_dir)
    stamps = _stamps(bin_dir, sorted(map(str, files)))
    entry = {"format": _FORMAT, "stamps": stamps, "facts": form.dump_python(facts)}
    # A build that is still being linked is asked again the next time, as in a read-only home.
    if all(identity(path).settled(began) for path in files):
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(cache) as file:
                file.write(json.dumps(entry).encode())
    return facts


def _stamps(bin_dir: Path, files: Iterable[str]) -> dict[str, Any]:
    """What must stay the same for the remembered facts to hold."""
    identities = {path: str(identity(Path(path))) for path in files}
    names = {
        folder: sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.name.startswith("llama-") or is_engine_library(entry.name)
        )
        for folder in {str(bin_dir), *(str(Path(path).parent) for path in identities)}
    }
    environment = os.environ.get("LD_LIBRARY_PATH", "")
    return {"files": identities, "names": names, "environment": environment}


def find_bin_dir(directory: Path) -> Path:
    """Where the tools lie under ``directory``; PrerequisiteError when none is there."""
    directory = directory.expanduser()
    if not directory.is_dir():
        raise PrerequisiteError(
            f"engine directory {directory} does not exist",
            hint="give a llama.cpp or ik_llama.cpp build directory: --engine name=DIR",
        )
    for candidate in (directory, directory / "bin", directory / "build" / "bin"):
        if any((candidate / f"llama-{tool}").is_file() for tool in TOOLS):
            return candidate.resolve()
    raise PrerequisiteError(
        f"{directory} holds no llama.cpp tools (no llama-quantize, not in bin/ either)",
        hint="build it: cmake -B build && cmake --build build --config Release",
    )


def _gather(bin_dir: Path) -> tuple[Facts, list[Path]]:
    """The facts with the files that they are of."""
    tools = {
        name: path
        for name in (*TOOLS, *OPTIONAL_TOOLS)
        if os.access(path := bin_dir / f"llama-{name}", os.X_OK) and path.is_file()
    }
    if not tools:
        raise PrerequisiteError(f"no tool in {bin_dir} is executable", hint=f"chmod +x {bin_dir}/*")
    with tempfile.TemporaryDirectory(prefix="cook-probe-") as folder:
        home = Path(folder)
        library_path, libraries = _resolve_libraries(bin_dir, tools, home)
        env = engine_environment(library_path, home=home)
        helps: dict[str, str] = {}
        for name, path in tools.items():
            result = ask(str(path), "--help", env=env)
            if result.outcome not in (Outcome.OK, Outcome.TOOL_ERROR):  # llama-quantize ends with 1
                result.check()
            helps[name] = result.stdout_tail + result.stderr_tail
        versioned = [tools[t] for t in ("server", "imatrix", "perplexity") if t in tools]
        if not versioned:
            raise PrerequisiteError(f"{bin_dir} has neither llama-server nor llama-imatrix")
        version = ask(str(versioned[0]), "--version", env=env).check()
        build, commit = parse_build(version.stderr_tail + "\n" + version.stdout_tail)
        types = _types(libraries, tools, env)
        cpu = next((p for p in libraries if p.name.startswith("libggml-cpu")), None)
        repack = not amx_refused(cpu)
    # One build lists the same library under several links; resolved paths name it once.
    files = sorted({*(path.resolve() for path in tools.values()), *libraries})
    hashes = {path.name: digest_of(path).removeprefix("sha256:") for path in files}
    digest = hashlib.sha256("".join(f"{n}\0{h}\n" for n, h in sorted(hashes.items())).encode())
    facts = Facts(
        bin_dir=str(bin_dir),
        library_dirs=tuple(sorted({str(path.parent) for path in libraries})),
        flavour=flavour_of(helps),
        build=build,
        commit=commit,
        digest=digest.hexdigest(),
        files=hashes,
        types=types,
        ftypes=tuple(sorted(parse_ftypes(helps.get("quantize", "")))),
        flags={name: tuple(sorted(parse_flags(text))) for name, text in helps.items()},
        library_path=tuple(map(str, library_path)),
        repack=repack,
        speculators=speculators_in_help(helps.get("server", "")),
        defaults=parse_defaults(helps.get("server", "")),
    )
    return facts, files


def flavour_of(helps: dict[str, str]) -> Flavour:
    """Flavour by the flags only one family has; PrerequisiteError when neither shows."""
    text = "\n".join(helps.values())
    if "--custom-q" in text or "--run-time-repack" in text:
        return Flavour.IK_LLAMA_CPP
    if "--tensor-type" in text or "--spec-draft-model" in text or "--no-log-prefix" in text:
        return Flavour.LLAMA_CPP
    raise PrerequisiteError(
        "the tools are neither of llama.cpp nor of ik_llama.cpp by their options",
        hint="is the build recent? cook needs llama-quantize with --tensor-type or --custom-q",
    )


def _resolve_libraries(
    bin_dir: Path, tools: Mapping[str, Path], home: Path
) -> tuple[tuple[Path, ...], list[Path]]:
    """Library search path that makes every tool start (none where they do without), and the
    engine's libraries. PrerequisiteError where one is missing, or a tool cannot run here."""
    parent = bin_dir.parent
    # Directories whose libraries are the engine's own (never a whole site-packages).
    near = (bin_dir, parent / "lib", parent / "lib64", parent / "src", parent / "ggml" / "src")
    roots = tuple(path.resolve() for path in near if path.is_dir())
    folders = [path for root in roots for path in (root, root / "lib") if path.is_dir()]
    own = [f for f in folders if any(is_engine_library(e.name) for e in os.scandir(f))]
    missing: set[str] = set()
    for library_path in ((), tuple(dict.fromkeys(own))):
        env = engine_environment(library_path, home=home)
        # Backends that are opened at run time (GGML_BACKEND_DL) lie next to the tools.
        found = {path.resolve() for path in bin_dir.glob("libggml-*.so*") if path.is_file()}
        missing = set()
        for tool in tools.values():
            # `env` sets it: the dynamic loader lists the libraries of whatever starts, and ends.
            result = ask("/usr/bin/env", "LD_TRACE_LOADED_OBJECTS=1", str(tool), env=env)
            if result.outcome is Outcome.UNRUNNABLE:
                result.check()
            for name, where in _LOADED.findall(result.stdout_tail):
                path = Path(where).resolve()
                if where == "not found":
                    missing.add(name)
                elif is_engine_library(name) or any(path.is_relative_to(root) for root in roots):
                    found.add(path)
        if not missing:
            return library_path, sorted(found)
    raise PrerequisiteError(
        f"{roots[0]}: shared library {', '.join(sorted(missing))} is missing",
        hint="rebuild the engine (`make setup` for the bundled one), or set LD_LIBRARY_PATH",
    )


def _types(libraries: list[Path], tools: dict[str, Path], env: Mapping[str, str]) -> dict[str, int]:
    """Tensor types that can be written, by exact name, from the engine's ggml library."""
    for stem in ("libggml-base.", "libggml."):
        for library in libraries:
            if library.name.startswith(stem):
                printed = ask(*_PYTHON, _TYPES_CHILD, str(library), env=env)
                if types := parse_types(printed.stdout_tail):
                    return types
    # A static build: its type names stand in the executable as C strings.
    from cook.formats.quant_types import TYPES

    tool = tools.get("quantize") or next(iter(tools.values()))
    data = tool.read_bytes()
    if data.startswith(b"#!"):
        # A wrapper script can only name them.
        words = set(re.findall(rb"\w+", data))
        return {t.name: t.id for t in TYPES.values() if t.name.encode() in words}
    return {t.name: t.id for t in TYPES.values() if b"\0" + t.name.encode() + b"\0" in data}


def is_engine_library(name: str) -> bool:
    return re.match(r"lib(?:llama|ggml|mtmd)[-_.]", name) is not None


_PYTHON = (sys.executable, "-I", "-S", "-c")
_DEFAULT = re.compile(r"\(?default: '?([\w.,+-]{1,60}?)'?[),]")
_FLAG = re.compile(r"(?<![\w<\[|/.-])(--?[A-Za-z][\w-]*)")
_PROSE = " " * 20
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


def amx_refused(cpu_library: Path | None) -> bool:
    """Whether this build would run AMX code that this machine refuses."""
    with contextlib.suppress(OSError):
        has_amx = b" amx_tile" in Path("/proc/cpuinfo").read_bytes()[: 1 << 20]
        if has_amx and cpu_library is not None and _LDTILECFG in cpu_library.read_bytes():
            return ask(*_PYTHON, _AMX_CHILD).outcome is not Outcome.OK
    return False


def parse_build(text: str) -> tuple[str, str | None]:
    """Build and commit from the text of ``--version``; PrerequisiteError when it has none."""
    if found := _BUILD_ML.search(text):
        version, number, commit = found.groups()
        build = f"{version} b{number} ({commit})"
    elif found := _BUILD.search(text):
        number, commit = found.groups()
        build = f"b{number} ({commit})"
    else:
        raise PrerequisiteError(
            "the engine does not print its version: not a llama.cpp-family build?"
        )
    return build, commit if re.fullmatch(r"[0-9a-f]{7,40}", commit) else None


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
        # What follows on the next line is prose of the same flag, and may name others.
        around = [more for more in lines[number + 1 : number + 2] if more.startswith(_PROSE)]
        around += lines[number - 1 : number] if line.startswith(_PROSE) else []
        if "argument has been removed" in " ".join((line, *around)):
            continue
        # A definition is the flags before the first run of spaces; the rest is prose.
        head = stripped if usage else re.split(r"\s{2,}(?![\s-])|: ", stripped, maxsplit=1)[0]
        flags.update(_FLAG.findall(head))
    return frozenset(flags)


def parse_defaults(text: str) -> dict[str, str]:
    """Flag -> its default, as a tool's help has it: ``--spec-draft-p-min`` -> ``0.00``.

    By the longest of a flag's spellings. Words and numbers only: a sentence is no value, and a
    path is this machine's.
    """
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[ \t]{0,11}-)", text):
        match = _DEFAULT.search(" ".join(block.split()))
        flags = sorted(parse_flags(block.split("\n", 1)[0]), key=lambda f: (-len(f), f))
        if match is not None and flags:
            found.setdefault(flags[0], match[1])
    return dict(sorted(found.items()))


def parse_ftypes(text: str) -> frozenset[str]:
    """Base types from the help of llama-quantize."""
    _, _, listing = text.lower().partition("allowed quantization types")
    return frozenset(_FTYPE.findall(text[len(text) - len(listing) :])) if listing else frozenset()
