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
    pip = (python, "-m", "pip", "install", "--quiet")
    run(*pip, "--require-hashes", "-r", "requirements.lock")
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    run(python, "-m", "cook.engine_setup", "--lock", "requirements-engine.lock")
    stamp.write_text(wanted)
    print(f"setup: done; `{venv / 'bin' / 'cook'} --help`", file=sys.stderr)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - says so instead of failing on a new module
        sys.exit("error: cook needs Python 3.11 or newer\nhint: make setup PYTHON=python3.12")
    main()
