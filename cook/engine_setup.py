"""Builds the bundled engine: llama-cpp-python from source, with llama.cpp's own tools.

``python -m cook.engine_setup`` works in any environment that has pip; ``make setup`` runs it
with the hashed lock. Only the standard library is used, because it also runs where cook's
dependencies are not installed yet. Facts behind the options: an ordinary wheel has no tools;
without a run path they need LD_LIBRARY_PATH; virtual machines that advertise AMX and refuse
it crash on quantized weights; pip returns a wheel from its cache whatever options built it.
``engine_setup.cmake`` says what is compiled, and which part of it for speed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from cook.engines.process.outcome import Outcome, ProcessSpec, clean
from cook.engines.process.supervisor import Supervisor, ask
from cook.errors import CookError, PrerequisiteError

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
TOOLS = ("quantize", "imatrix", "perplexity", "server", "bench", "batched-bench")
MENDING_LINE = "python -m cook.engine_setup"
CMAKE_FILE = Path(__file__).with_suffix(".cmake")
NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
LOG_NAME = "cook-engine-build.log"
START_TIMEOUT_S = 60
SAY_EVERY_S = 20.0
TIME_BY_STEPS = (0.0, 0.05, 0.1, 0.16, 0.3, 0.44, 0.58, 0.71, 0.84, 0.88, 0.91)
"""Share of the whole time when each tenth of the steps was done, as one build on two cores took it
(the first three by eye); the rest goes to packing and checking."""


def bin_dir() -> Path | None:
    """Where the engine's tools are installed, or None when llama-cpp-python is absent."""
    # Not `import llama_cpp`: that loads the library, half a second and a crash when it is broken.
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent.parent / "bin" if spec and spec.origin else None


def installed_version() -> str | None:
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def start_failure(tool: Path) -> str | None:
    """Why ``tool`` does not start alone (no LD_LIBRARY_PATH), or None when it does."""
    if not tool.is_file():
        return "missing"
    # The loader reports "not found" libraries before any of the tool's own code runs; --help
    # exits 0 or 1 depending on the tool, so only a loader's or a signal's status is a failure.
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    try:
        result = ask(str(tool), "--help", env=environment, timeout_s=START_TIMEOUT_S)
    except CookError as error:
        return error.message
    if result.returncode in (0, 1):
        return None
    lines = clean(result.stderr_tail).strip().splitlines()
    return lines[-1] if lines else f"{result.outcome} (exit status {result.returncode})"


def failures() -> dict[str, str]:
    """Every tool that cannot be used, with the reason; empty when the engine is whole."""
    directory = bin_dir()
    if directory is None:
        return {f"llama-{tool}": f"{PACKAGE} is not installed" for tool in TOOLS}
    reasons = {f"llama-{tool}": start_failure(directory / f"llama-{tool}") for tool in TOOLS}
    return {tool: reason for tool, reason in reasons.items() if reason}


def find_compiler() -> str | None:
    """The C++ compiler that cmake would take."""
    wanted = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


def missing_prerequisites() -> list[str]:
    """What building needs and is missing here, each with the line that installs it."""
    missing = []
    if find_compiler() is None:
        missing.append("no C++ compiler found: sudo apt install g++ (or set CXX)")
    if shutil.which("cmake") is None:
        missing.append("cmake not found: sudo apt install cmake")
    return missing


def compiler_takes(compiler: str, flags: tuple[str, ...]) -> bool:
    """Whether ``compiler`` knows ``flags`` (old ones do not know AMX, nor do they emit it)."""
    argv = ("-Werror", *flags, "-x", "c++", "-fsyntax-only", os.devnull)
    return ask(str(Path(compiler).absolute()), *argv).outcome is Outcome.OK


def cmake_args(machine: str, system: str, *, avoid_amx: bool) -> str:
    """``CMAKE_ARGS`` for a build with tools that need no search path for their libraries."""
    origin = "@loader_path" if system == "Darwin" else "$ORIGIN"
    separator = ";" if system == "Darwin" else ":"
    args = [
        "-DLLAMA_BUILD_TOOLS=ON",
        "-DLLAMA_BUILD_SERVER=ON",
        "-DLLAMA_TOOLS_INSTALL=OFF",  # of all tools; the file installs those that are named
        f"-DCOOK_ENGINE_TOOLS={';'.join(TOOLS)}",
        f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={CMAKE_FILE}",
        "-DLLAMA_ALL_WARNINGS=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",  # a wheel holds no links: three copies of each
        "-DLLAVA_BUILD=OFF",
        "-DGGML_RPC=ON",
        f"-DCMAKE_INSTALL_RPATH={origin}/../lib{separator}{origin}",
    ]
    if avoid_amx and machine in {"x86_64", "AMD64", "i686"}:
        flags = " ".join(NO_AMX)
        args += [f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"]
    extra = os.environ.get("CMAKE_ARGS", "")
    return f"{shlex.join(args)} {extra}".strip()


def pip_install(lock: Path | None, *, cached: bool) -> list[str]:
    """The pip command that builds the engine into this interpreter's environment."""
    argv = [sys.executable, "-m", "pip", "install", "--verbose", "--no-deps", "--force-reinstall"]
    argv += ["--no-binary", PACKAGE]
    argv += [] if cached else ["--no-cache-dir"]
    if lock is None:
        return [*argv, f"{PACKAGE}=={VERSION}"]
    # The lock pins what builds it as well, so nothing unpinned is fetched behind its back.
    return [*argv, "--no-build-isolation", "--require-hashes", "-r", str(lock.absolute())]


def build(argv: list[str], arguments: str, log: Path) -> None:
    """Run pip, its output to ``log``, and say now and then how far it is."""
    environment = dict(os.environ, CMAKE_ARGS=arguments)
    # pip's own scripts directory: with --no-build-isolation cmake must find the locked ninja.
    scripts = str(Path(sys.executable).parent)
    environment["PATH"] = scripts + os.pathsep + environment.get("PATH", "")
    with log.open("wb") as sink, tempfile.TemporaryDirectory(prefix="cook-setup-") as logs:
        pace = Pace()

        def on_output(_: str, chunk: bytes) -> None:
            sink.write(chunk)
            pace.read(chunk)

        spec = ProcessSpec(
            tuple(argv), "pip", environment, stall_timeout_s=None, on_output=on_output
        )
        with _every(SAY_EVERY_S, lambda: say(f"  {pace}")):
            outcome = Supervisor(Path(logs)).run(spec).outcome
    if outcome is not Outcome.OK:
        tail = clean(log.read_text(errors="replace")).splitlines()[-25:]
        raise PrerequisiteError(
            "\n".join([*tail, f"building {PACKAGE} failed; the whole log is {log}"])
        )


class Pace:
    """How far a build is, by ninja's ``[12/345]``, and how much longer it may take.

    Steps differ in length, and ninja's words come in blocks; so a share of the steps is turned
    into the share of the time that it took where :data:`TIME_BY_STEPS` was measured, and the
    time goes on between two words.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.started = now()
        self.expected_s: float | None = None
        """How long the whole build takes, going by the last word."""
        self._rest = b""

    def read(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            step = re.match(rb"\s*\[(\d{1,6})/(\d{1,6})\]", line)
            if step and 0 < int(step[1]) <= int(step[2]):
                share = share_of_time(int(step[1]) / int(step[2]))
                self.expected_s = (self.now() - self.started) / share

    def __str__(self) -> str:
        gone = self.now() - self.started
        if self.expected_s is None:
            return f"{_about(gone)} so far"
        left = self.expected_s - gone
        return f"{_about(gone)} so far, " + (
            f"about {_about(left)} left" if left > 10 else "nearly done"
        )


def share_of_time(steps: float) -> float:
    """Share of a build's time that is over when ``steps`` (in (0, 1]) of its steps are."""
    place = min(int(steps * 10), 9)
    low, high = TIME_BY_STEPS[place : place + 2]
    return max(low + (high - low) * (steps * 10 - place), 0.01)


def _about(seconds: float) -> str:
    minutes, rest = divmod(round(seconds / 10) * 10, 60)
    return " ".join([*([f"{minutes} min"] if minutes else []), *([f"{rest} s"] if rest else [])])


@contextmanager
def _every(seconds: float, do: Callable[[], None]) -> Iterator[None]:
    """``do`` again and again from another thread, for the time of the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            do()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ensure(lock: Path | None) -> None:
    """Make the bundled engine usable, doing nothing when it already is."""
    if installed_version() == VERSION and not failures():
        say(f"bundled engine: {PACKAGE} {VERSION} with its tools is in {bin_dir()}")
        return
    if missing := missing_prerequisites():
        raise PrerequisiteError("\n".join(missing))
    compiler = find_compiler()
    avoid_amx = compiler is not None and compiler_takes(compiler, NO_AMX)
    arguments = cmake_args(platform.machine(), platform.system(), avoid_amx=avoid_amx)
    in_venv = sys.prefix != sys.base_prefix
    log = Path(sys.prefix if in_venv else tempfile.gettempdir()) / LOG_NAME
    for cached in (True, False):
        started = time.monotonic()
        say(f"building {PACKAGE} {VERSION} with its tools (3 to 8 minutes; log: {log})")
        build(pip_install(lock, cached=cached), arguments, log)
        importlib.invalidate_caches()
        broken = failures()
        if not broken:
            say(f"bundled engine: built in {time.monotonic() - started:.0f} s into {bin_dir()}")
            return
        if cached:
            say("pip's cache held a build without usable tools; building again without the cache")
    reasons = "\n".join(f"{tool}: {reason}" for tool, reason in broken.items())
    raise PrerequisiteError(
        f"{PACKAGE} was built, but its tools are unusable; see {log}\n{reasons}"
    )


def main() -> int:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=MENDING_LINE, description=summary)
    parser.add_argument("--lock", type=Path, help="hashed requirements file holding the engine")
    parser.add_argument("--print-cmake-args", action="store_true", help="show CMAKE_ARGS and stop")
    arguments = parser.parse_args()
    if arguments.print_cmake_args:
        print(cmake_args(platform.machine(), platform.system(), avoid_amx=True))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ensure(arguments.lock)
    except PrerequisiteError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
