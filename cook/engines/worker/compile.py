"""Compiles ``worker.c`` against an engine's own headers and libraries, once per engine.

The result is cached under ``COOK_HOME/cache/workers/<digest>``; the digest covers the engine's
identity, the headers, our sources, the compiler, its flags and the CPU (``-march=native``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cook.engines.base import Engine
from cook.engines.process.outcome import Outcome, ProcessSpec, clean, failure
from cook.engines.process.supervisor import Supervisor, ask
from cook.errors import PrerequisiteError, StepError
from cook.files import publish, temporary_beside
from cook.formats.quant_types import Flavour
from cook.paths import cook_home

COMPILERS = ("cc", "gcc", "clang")
STANDARD = "-std=gnu11"
UNITS = {
    # It waits for the engine: what compiles fast will do.
    "worker.c": ("-O1",),
    # It vectorises only when sums may be reassociated; NaN is looked for by its bits.
    "worker_reduce.c": (
        *("-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
        *("-fassociative-math", "-ffinite-math-only"),
    ),
}
"""What is compiled, each with its own flags."""
# Features found in the header's text, so that one source serves every version of both flavours.
FEATURES = {
    "COOK_HAS_HEADS": r"\bLLAMA_CONTEXT_TYPE_MTP\b|\bllama_model_mtp_feature_width\b",
    "COOK_HAS_HYBRID": r"\bllama_model_is_hybrid\b",
    "COOK_HAS_QUANTIZE_USER_DATA": r"\bquantize_user_data\b",
    "COOK_HAS_VERSION": r"\bllama_version\s*\(",
}

_MEMBERS = "worker_members.h"
"""What is written of the parameters, for worker_params.h."""
_MEMBER = re.compile(
    r"^\s*(?:bool|int|int32_t|uint32_t|float|enum\s+\w+)\s+(\w+)\s*;", re.MULTILINE
)


@dataclass(frozen=True)
class EngineFiles:
    """What the compiler needs of one engine: directories of headers and of libraries."""

    flavour: Flavour
    digest: str
    include_dirs: tuple[Path, ...]
    library_dirs: tuple[Path, ...]

    def headers(self, name: str) -> list[Path]:
        return [d / name for d in self.include_dirs if (d / name).is_file()]

    def header_text(self, name: str) -> str:
        """The text of every header of that name."""
        return "".join(p.read_text(encoding="utf-8", errors="replace") for p in self.headers(name))


def locate(engine: Engine) -> EngineFiles:
    """Headers and libraries that belong to ``engine``: an install prefix or a CMake build tree.

    PrerequisiteError when there are none, or when the source tree has moved on from the build.
    """
    tool = engine.tool("server").resolve()
    prefix = tool.parent.parent
    cache = prefix / "CMakeCache.txt"
    includes: tuple[Path, ...] = ()
    if (prefix / "include" / "llama.h").is_file():
        includes = (prefix / "include",)
    elif cache.is_file():
        text = cache.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.+)$", text, re.MULTILINE)
        if found:
            source = Path(found.group(1))
            includes = (source / "include", source / "ggml" / "include")
            built, at = engine.identity.commit, ""
            with suppress(OSError):
                at = (source / ".git" / "HEAD").read_text(encoding="utf-8").strip()
                if at.startswith("ref: "):
                    ref, at = at.removeprefix("ref: "), ""
                    at = (source / ".git" / ref).read_text(encoding="utf-8").strip()
            # Sources may have been pulled since a build was made of them: then the headers lie.
            if built and at and not (at.startswith(built) or built.startswith(at)):
                raise PrerequisiteError(
                    f"{source} is at commit {at[:8]}, but {engine.name} was built from {built[:8]}",
                    hint="rebuild the engine, or check out the commit it was built from",
                )
    near = (prefix / "lib", prefix / "lib64", tool.parent, prefix / "src", prefix / "ggml" / "src")
    libraries = tuple(d for d in near if any(d.glob("libllama.*")) or any(d.glob("libggml*.*")))
    has_headers = includes and all(d.is_dir() for d in includes)
    if not has_headers or not libraries:
        what = "shared libraries" if has_headers else "headers"
        raise PrerequisiteError(
            f"engine {engine.name!r} has no {what} that belong to {tool}",
            hint="give cook a CMake build directory (with BUILD_SHARED_LIBS=ON and its sources "
            "kept), or an install prefix with include/ and lib/; a release without headers scores "
            "drafts on its real server: `score: {method: live}`, `cook score --method live`",
        )
    return EngineFiles(engine.flavour, engine.identity.digest, includes, libraries)


def compiler() -> str:
    """The user's C compiler (``CC`` wins); PrerequisiteError with the line that installs one."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        if name and (found := shutil.which(name)):
            return str(Path(found).absolute())
    raise PrerequisiteError(
        f"no C compiler ({wanted or ', '.join(COMPILERS)}) to compile the worker with",
        hint="sudo apt-get install gcc libc6-dev   (or set CC)",
    )


def _cpu() -> str:
    """What ``-march=native`` depends on."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines = (x for x in text.splitlines() if x.startswith(("model name", "flags", "Features")))
        return "\n".join(sorted(set(lines)))
    return platform.processor()


def library_parameters(header: str) -> dict[str, tuple[str, ...]]:
    """The plain numbers that the text of a ``llama.h`` lets one set, of ``model`` and ``context``.

    Pointers and callbacks are not among them.
    """
    found = {}
    for of in ("model", "context"):
        body = re.search(
            rf"struct llama_{of}_params \{{(.*?)^\s*\}};", header, re.DOTALL | re.MULTILINE
        )
        found[of] = tuple(_MEMBER.findall(body.group(1))) if body else ()
    return found


def parameter_names(files: EngineFiles) -> frozenset[str]:
    """``model.NAME`` and ``context.NAME`` of all that a worker of this engine can set."""
    found = library_parameters(files.header_text("llama.h"))
    return frozenset(f"{of}.{name}" for of, names in found.items() for name in names)


def knows_heads(files: EngineFiles) -> bool:
    """Whether a worker of this engine has the operations of heads."""
    return re.search(FEATURES["COOK_HAS_HEADS"], files.header_text("llama.h")) is not None


def quantization_version(files: EngineFiles) -> int:
    """What this engine's files say of the layout of their quantized types; PrerequisiteError where
    its headers do not."""
    text = files.header_text("ggml.h")
    if found := re.search(r"^#define GGML_QNT_VERSION\s+(\d+)", text, re.MULTILINE):
        return int(found.group(1))
    raise PrerequisiteError("the engine's ggml.h has no GGML_QNT_VERSION")


def build_worker(files: EngineFiles) -> Path:
    """Path of the worker program for this engine, compiled now if it was not before."""
    cc = compiler()
    here, header = Path(__file__).parent, files.header_text("llama.h")
    features = [name for name, pattern in FEATURES.items() if re.search(pattern, header)]
    if files.flavour is Flavour.IK_LLAMA_CPP:
        features.append("COOK_IK")
    if "ggml_backend_load_all(" in files.header_text("ggml-backend.h"):
        features.append("COOK_HAS_LOAD_ALL")
    defines = tuple(f"-D{name}" for name in features)
    lines = ["// Written by compile.py from the engine's llama.h."]
    for of, parameters in library_parameters(header).items():
        names = " ".join(f"M({name})" for name in parameters)
        lines.append(f"#define COOK_{of.upper()}_MEMBERS(M) {names}")
    members = "\n".join(lines) + "\n"
    key = hashlib.sha256()
    parts = [files.digest, ask(cc, "--version").stdout_tail, _cpu(), STANDARD, *defines]
    parts += [word for unit, flags in UNITS.items() for word in (unit, *flags)]
    parts += [*map(str, files.library_dirs), members]
    for part in parts:
        key.update(part.encode() + b"\0")
    headers = ("llama.h", "ggml.h", "ggml-backend.h")
    for path in [*sorted(here.glob("*.[ch]")), *(h for n in headers for h in files.headers(n))]:
        key.update(path.read_bytes() + b"\0")
    program = cook_home() / "cache" / "workers" / key.hexdigest()[:32] / "worker"
    if program.is_file():
        return program
    with (
        tempfile.TemporaryDirectory(prefix="cook-worker-") as temp,
        temporary_beside(program) as made,
    ):
        folder = Path(temp)
        (folder / _MEMBERS).write_text(members, encoding="utf-8")
        for march in (("-march=native",), ()):  # a compiler may not know this processor
            errors = _compile(cc, (*march, *defines), files, folder, made)
            if errors is None:
                publish(made, program)
                return program
    raise StepError(
        "the worker does not compile against this engine's headers and libraries:\n"
        + "\n".join((errors or "").strip().splitlines()[-15:]),
        hint="the engine may be newer or older than cook knows; please report its version",
    )


def _compile(
    cc: str, words: tuple[str, ...], files: EngineFiles, folder: Path, program: Path
) -> str | None:
    """Compile every unit in ``folder`` and link them as ``program``; the compiler's complaint if it
    has one."""
    here = Path(__file__).parent
    supervisor = Supervisor(folder / "logs")
    # The compiler's own temporary files go with the folder.
    env = {**os.environ, "TMPDIR": str(folder)}

    def run(*argv: str) -> str | None:
        job = ProcessSpec((cc, *argv), "cc", env, writes=(folder, program.parent))
        result = supervisor.run(job)
        if result.outcome not in (Outcome.OK, Outcome.TOOL_ERROR, Outcome.CRASH):
            raise failure(result)
        return None if result.outcome is Outcome.OK else clean(result.stderr_tail)

    words = (STANDARD, *words, *(f"-I{d}" for d in (folder, *files.include_dirs)), "-c")
    objects = {unit: str(folder / f"{unit}.o") for unit in UNITS}
    for unit, flags in UNITS.items():
        error = run(*flags, *words, str(here / unit), "-o", objects[unit])
        if error is not None:
            return error
    libraries = [word for d in files.library_dirs for word in (f"-L{d}", f"-Wl,-rpath,{d}")]
    for name in ("llama", "ggml", "ggml-base"):
        if any(any(d.glob(f"lib{name}.*")) for d in files.library_dirs):
            libraries.append(f"-l{name}")
    return run(*objects.values(), "-o", str(program), *libraries, "-lpthread", "-lm")
