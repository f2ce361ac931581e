"""Makes the development environment: a venv, the locked packages, cook, the bundled engine.

Run by `make setup` with any Python >= 3.11; standard library only. It does nothing when the
venv carries the stamp of the same locks and the engine's tools are there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = (
    "requirements.lock",
    "requirements-engine.lock",
    "pyproject.toml",
    "cook/engine_setup.py",
    "cook/engine_setup.cmake",
    "tools/setup.py",
)
SAY_EVERY_S = 15
FETCHED = ("Collecting ", "Processing ", "Requirement already satisfied: ")
"""How pip begins a line on a package: of an index, a file that it found, or there already."""


def fingerprint() -> str:
    """What the venv depends on, and where it is (an editable install holds the path)."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for name in INPUTS:
        digest.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def has_tools(venv: Path) -> bool:
    return any(venv.glob("lib/python3*/site-packages/bin/llama-quantize"))


def create(venv: Path) -> None:
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    except subprocess.CalledProcessError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(
            f"error: {sys.executable} cannot make a venv\n"
            f"hint: sudo apt install python{version}-venv"
        ) from None


def install(python: Path, lock: Path) -> None:
    """Install what ``lock`` pins, saying how far it is.

    Bytecode is left to the first import: most modules of the packages are never imported.
    """
    total = sum("==" in line for line in lock.read_text().splitlines())
    argv = [str(python), "-m", "pip", "install", "--no-compile", "--require-hashes"]
    said, fetched, last = time.monotonic(), 0, deque[str](maxlen=25)
    with subprocess.Popen(
        [*argv, "-r", str(lock)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            fetched += line.startswith(FETCHED)
            unpacking = line.startswith("Installing collected packages")
            if unpacking or time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                what = "fetched, unpacking them" if unpacking else "fetched"
                print(f"  {fetched} of {total} packages {what}", file=sys.stderr, flush=True)
    if pip.returncode != 0:
        sys.stderr.writelines(last)
        raise SystemExit(pip.returncode)


def run(*argv: str | Path) -> None:
    status = subprocess.run([str(a) for a in argv], cwd=ROOT, check=False).returncode
    if status != 0:
        raise SystemExit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    venv = parser.parse_args().venv.resolve()
    stamp = venv / ".cook-setup"
    wanted = fingerprint()
    if stamp.is_file() and stamp.read_text() == wanted and has_tools(venv):
        return
    stamp.unlink(missing_ok=True)
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"setup: creating {venv}", file=sys.stderr)
        create(venv)
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    print("setup: installing the locked packages", file=sys.stderr)
    install(python, ROOT / "requirements.lock")
    pip = (python, "-m", "pip", "install", "--quiet")
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    run(python, "-m", "cook.engine_setup", "--lock", "requirements-engine.lock")
    stamp.write_text(wanted)
    print(f"setup: done; `{venv / 'bin' / 'cook'} --help`", file=sys.stderr)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - says so instead of failing on a new module
        sys.exit("error: cook needs Python 3.11 or newer\nhint: make setup PYTHON=python3.12")
    main()
