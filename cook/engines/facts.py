"""Everything known of one engine build, gathered once and remembered by its files.

Gathering starts a dozen short programs (about a second); remembering costs one ``stat`` a file.
What is remembered is valid while every file of the engine has the same device, inode, size and
modification time, and no file was added to its directories.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.engines import probe
from cook.engines.environment import engine_environment
from cook.errors import PrerequisiteError
from cook.formats.atomic import atomic_write
from cook.paths import cook_home

TOOLS = ("server", "quantize", "imatrix", "perplexity", "bench", "batched-bench")
# More tools that cook can use; they count in the identity where present.
OPTIONAL_TOOLS = ("sweep-bench", "spec-bench", "gguf-split")
_FORMAT = 3


@dataclass(frozen=True)
class Facts:
    """One engine build. ``files`` is name -> SHA-256 of what runs; ``digest`` sums them up."""

    bin_dir: str
    library_dirs: tuple[str, ...]
    flavour: str
    build: str
    commit: str | None
    digest: str
    files: dict[str, str]
    types: dict[str, int]
    ftypes: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    library_path: tuple[str, ...]
    repack: bool


def facts_of(directory: Path) -> Facts:
    """Facts of the engine in ``directory`` (a build directory or its ``bin``).

    Raises PrerequisiteError when it holds no engine, or one that cannot run here.
    """
    bin_dir = find_bin_dir(directory)
    cache = cook_home() / "cache" / "engines" / f"{_short(str(bin_dir))}.json"
    remembered = _load(cache)
    if remembered is not None and remembered["stamps"] == _stamps(remembered["watched"]):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return _revive(remembered["facts"])
    known = remembered["hashes"] if remembered is not None else {}
    facts, files = _gather(bin_dir, known)
    watched = {
        "files": sorted(map(str, files)),
        "directories": sorted({str(path.parent) for path in files} | {str(bin_dir)}),
    }
    hashes = {_stamp_key(path): facts.files[path.name] for path in files}
    entry = {
        "format": _FORMAT,
        "watched": watched,
        "stamps": _stamps(watched),
        "hashes": hashes,
        "facts": dataclasses.asdict(facts),
    }
    _save(cache, entry)
    return facts


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


def _gather(bin_dir: Path, known: dict[str, str]) -> tuple[Facts, list[Path]]:
    tools = {
        name: path
        for name in (*TOOLS, *OPTIONAL_TOOLS)
        if os.access(path := bin_dir / f"llama-{name}", os.X_OK) and path.is_file()
    }
    if not tools:
        raise PrerequisiteError(f"no tool in {bin_dir} is executable", hint=f"chmod +x {bin_dir}/*")
    roots = _roots(bin_dir)
    with probe.temporary_logs() as logs:
        home = Path(logs) / "home"
        home.mkdir()
        library_path, libraries = _resolve_libraries(tools, roots, home, Path(logs))
        # Backends that are opened at run time (GGML_BACKEND_DL) lie beside the tools.
        opened = {path.resolve() for path in bin_dir.glob("libggml-*.so*") if path.is_file()}
        libraries = sorted({*libraries, *opened})
        env = engine_environment(library_path, home=home)
        prober = probe.Prober(env, Path(logs))
        helps = {name: prober.help_text(path) for name, path in tools.items()}
        teller = next((tools[t] for t in ("server", "imatrix", "perplexity") if t in tools), None)
        if teller is None:
            raise PrerequisiteError(f"{bin_dir} has neither llama-server nor llama-imatrix")
        build, commit = prober.build(teller)
        types = _types(prober, libraries, tools)
        cpu = next((p for p in libraries if p.name.startswith("libggml-cpu")), None)
        repack = not prober.amx_refused(cpu)
    # One build lists the same library under several links; resolved paths name it once.
    files = sorted({*(path.resolve() for path in tools.values()), *libraries})
    hashes = {path.name: known.get(_stamp_key(path)) or _sha256(path) for path in files}
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
        ftypes=tuple(sorted(probe.parse_ftypes(helps.get("quantize", "")))),
        flags={name: tuple(sorted(probe.parse_flags(text))) for name, text in helps.items()},
        library_path=tuple(map(str, library_path)),
        repack=repack,
    )
    return facts, files


def flavour_of(helps: dict[str, str]) -> str:
    """Flavour by the flags only one family has; PrerequisiteError when neither shows."""
    text = "\n".join(helps.values())
    if "--custom-q" in text or "--run-time-repack" in text:
        return "ik_llama.cpp"
    if "--tensor-type" in text or "--spec-draft-model" in text or "--no-log-prefix" in text:
        return "llama.cpp"
    raise PrerequisiteError(
        "the tools are neither of llama.cpp nor of ik_llama.cpp by their options",
        hint="is the build recent? cook needs llama-quantize with --tensor-type or --custom-q",
    )


def _resolve_libraries(
    tools: dict[str, Path], roots: tuple[Path, ...], home: Path, logs: Path
) -> tuple[tuple[Path, ...], list[Path]]:
    """Library search path that makes every tool start (none where it does by itself)."""
    candidates = [path for root in roots for path in (root, root / "lib") if path.is_dir()]
    own = tuple(dict.fromkeys(path for path in candidates if _has_engine_library(path)))
    missing: list[str] = []
    for library_path in ((), own):
        prober = probe.Prober(engine_environment(library_path, home=home), logs)
        found = [prober.libraries(path, roots) for path in tools.values()]
        missing = sorted({name for libraries in found for name in libraries.missing})
        if not missing:
            return library_path, sorted({p for libraries in found for p in libraries.paths})
    raise PrerequisiteError(
        f"{roots[0]}: shared library {', '.join(missing)} is missing",
        hint="rebuild the engine (`make setup` for the bundled one), or set LD_LIBRARY_PATH",
    )


def _types(prober: probe.Prober, libraries: list[Path], tools: dict[str, Path]) -> dict[str, int]:
    for stem in ("libggml-base.", "libggml."):
        for library in libraries:
            if library.name.startswith(stem) and (types := prober.types(library)):
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


def _roots(bin_dir: Path) -> tuple[Path, ...]:
    """Directories whose libraries are the engine's own (never a whole site-packages)."""
    parent = bin_dir.parent
    near = (bin_dir, parent / "lib", parent / "lib64", parent / "src", parent / "ggml" / "src")
    return tuple(path.resolve() for path in near if path.is_dir() or path == bin_dir)


def _has_engine_library(directory: Path) -> bool:
    return any(probe.is_engine_library(entry.name) for entry in os.scandir(directory))


def _stamps(watched: dict[str, Any]) -> dict[str, Any] | None:
    """What must stay the same for the remembered facts to hold."""
    try:
        files = {path: _stamp_key(Path(path)) for path in watched["files"]}
        names = {
            directory: sorted(
                entry.name
                for entry in os.scandir(directory)
                if entry.name.startswith("llama-") or probe.is_engine_library(entry.name)
            )
            for directory in watched["directories"]
        }
    except (OSError, KeyError, TypeError):
        return None
    environment = [os.environ.get("LD_LIBRARY_PATH", "")]
    return {"files": files, "names": names, "environment": environment}


def _stamp_key(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _load(cache: Path) -> dict[str, Any] | None:
    try:
        entry = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(entry, dict) or entry.get("format") != _FORMAT:
        return None
    whole = all(isinstance(entry.get(k), dict) for k in ("watched", "stamps", "hashes", "facts"))
    return entry if whole else None


def _save(cache: Path, entry: dict[str, Any]) -> None:
    """Atomic; a read-only home only costs the next start a second."""
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cache) as file:
            file.write(json.dumps(entry).encode())


def _revive(fields: dict[str, Any]) -> Facts:
    lists = ("library_dirs", "ftypes", "library_path")
    values: dict[str, Any] = dict(fields) | {key: tuple(fields[key]) for key in lists}
    values["flags"] = {tool: tuple(flags) for tool, flags in fields["flags"].items()}
    return Facts(**values)
