"""What a study's every result line says of where it ran, and another program at work meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cook.provenance import machine

BUSY_S = 2.0
_SPIN = f"""
import time
while True:
    end = time.monotonic() + {BUSY_S}
    while time.monotonic() < end: pass
    time.sleep({BUSY_S})
"""


@contextmanager
def neighbour(noisy: bool) -> Iterator[None]:
    """Where ``noisy``, a process that holds one core half of the time."""
    if not noisy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _SPIN]) as running:
        try:
            yield
        finally:
            running.kill()


def append_result(file: Path, result: Mapping[str, Any]) -> None:
    """One JSON line, with the commit, the machine and the time of day."""
    words = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    made = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    here = {"commit": commit or None, "machine": machine().processor, "made": made}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**result, **here}) + "\n")
