"""Building the bundled engine: when it builds, with what, and how it meets pip's cache."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook import engine_setup
from cook.engine_setup import NO_AMX, cmake_args, ensure, start_failure
from cook.errors import PrerequisiteError


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_cmake_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools find their libraries, AMX is avoided only where it can be, what is built
    is what is checked, and the user's words come last."""
    linux = cmake_args("x86_64", "Linux", avoid_amx=True)
    assert "'-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib:$ORIGIN'" in linux
    assert "@loader_path/../lib" in cmake_args("arm64", "Darwin", avoid_amx=True)
    assert NO_AMX[0] in linux
    assert NO_AMX[0] not in cmake_args("x86_64", "Linux", avoid_amx=False)
    assert NO_AMX[0] not in cmake_args("aarch64", "Linux", avoid_amx=True)
    assert f"'-DCOOK_ENGINE_TOOLS={';'.join(engine_setup.TOOLS)}'" in linux
    assert f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={engine_setup.CMAKE_FILE}" in linux
    assert engine_setup.CMAKE_FILE.is_file()
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    assert cmake_args("x86_64", "Linux", avoid_amx=True) == f"{linux} -DGGML_CUDA=ON"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("exit 0", None),
        ("exit 1", None),  # llama-quantize --help
        ("echo 'libggml.so: cannot open shared object file' >&2; exit 127", "libggml.so"),
        ("kill -SEGV $$", "-11"),
    ],
)
def test_what_starts(tmp_path: Path, text: str, failure: str | None) -> None:
    found = start_failure(script(tmp_path / "llama-quantize", text))
    assert (failure in found) if failure and found else found == failure


def test_what_is_absent_or_no_program(tmp_path: Path) -> None:
    assert start_failure(tmp_path / "llama-quantize") == "missing"
    (tmp_path / "llama-server").write_bytes(b"\x7fELF")
    assert start_failure(tmp_path / "llama-server")


def test_prerequisites_come_with_the_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler, cmake = engine_setup.missing_prerequisites()
    assert "apt install g++" in compiler
    assert "apt install cmake" in cmake


Pip = Callable[..., list[list[str]]]
BROKEN = {"llama-quantize": "missing"}


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """``pip(outcomes)``: stands in for the build; each call leaves the failures that come next."""

    def stand_in(*outcomes: dict[str, str]) -> list[list[str]]:
        left, calls = list(outcomes), list[list[str]]()

        def build(argv: list[str], arguments: str, log: Path) -> None:
            calls.append(argv)
            del left[0]

        monkeypatch.setattr(engine_setup, "installed_version", lambda: None)
        monkeypatch.setattr(engine_setup, "missing_prerequisites", list)
        monkeypatch.setattr(engine_setup, "failures", lambda: left[0])
        monkeypatch.setattr(engine_setup, "build", build)
        return calls

    return stand_in


def test_one_build_when_the_tools_are_there_after_it(pip: Pip) -> None:
    calls = pip(BROKEN, {})
    ensure(Path("engine.lock"))
    (call,) = calls
    assert "--require-hashes" in call
    assert "--no-cache-dir" not in call


def test_a_cached_wheel_without_tools_is_built_again(pip: Pip) -> None:
    calls = pip(BROKEN, BROKEN, {})
    ensure(None)
    first, second = calls
    assert "--no-cache-dir" not in first
    assert "--no-cache-dir" in second
    assert second[-1] == f"{engine_setup.PACKAGE}=={engine_setup.VERSION}"
    pip(BROKEN, BROKEN, BROKEN)
    with pytest.raises(PrerequisiteError, match="llama-quantize: missing"):
        ensure(None)


def test_a_failed_build_shows_the_end_of_its_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('[1/2] x'); print('the reason'); raise SystemExit(1)"]
    with pytest.raises(PrerequisiteError, match=r"(?s)the reason.*whole log is"):
        engine_setup.build(argv, "", tmp_path / "log")


def test_the_time_left_goes_on_where_nothing_is_said() -> None:
    now = 0.0
    pace = engine_setup.Pace(lambda: now)
    now = 14
    assert str(pace) == "10 s so far"
    now = 60
    pace.read(b"[50/1")
    assert pace.expected_s is None
    pace.read(b"00] cc a.c\nnoise [99/100]\n[5/0] x\n[9/3] y\n")
    left = 60 / engine_setup.share_of_time(0.5) - 60
    assert str(pace).startswith("1 min so far, about ")
    assert str(pace).endswith(" left")
    now = 60 + left - 5
    assert str(pace).endswith("so far, nearly done")


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_shares_of_time_rise_to_one(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 0 < engine_setup.share_of_time(low / high) <= engine_setup.share_of_time(1.0) <= 1


@pytest.mark.engine
def test_nothing_is_built_where_the_engine_is_whole() -> None:
    argv = [sys.executable, "-m", "cook.engine_setup"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("bundled engine: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopping_a_build_stops_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from cook import engine_setup\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "engine_setup.build(['/bin/sh', '-c', sys.argv[2]], '', Path(sys.argv[1]))\n"
    )
    building = f"sleep 300 & echo $! >{tmp_path}/pid; echo [1/2]; wait"
    argv = [sys.executable, "-c", code, str(log), building]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        pid = tmp_path / "pid"
        deadline = time.monotonic() + 30
        while not (pid.is_file() and pid.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=30)
    child = Path("/proc", pid.read_text().strip(), "cmdline")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or not child.read_bytes()
