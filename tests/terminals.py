"""A command in a real pseudo-terminal of a given width: what it writes, and what is then seen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
STYLE = re.compile(r"\x1b\[[0-9;]*m")
MOVES = re.compile(r"\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")
"""Of a display that redraws itself."""
HEIGHT = 40


def in_terminal(
    argv: Sequence[str], width: int, environment: Mapping[str, str], cwd: Path
) -> tuple[int, str]:
    """Exit status and all that was written on a terminal of ``width`` places, without styles."""
    status, text = styled_in_terminal(argv, width, environment, cwd)
    return status, STYLE.sub("", text)


def styled_in_terminal(
    argv: Sequence[str], width: int, environment: Mapping[str, str], cwd: Path
) -> tuple[int, str]:
    """The same with styles. Lines are those that the command ended, before any terminal broke
    them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
    environ = {**environment, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    environ.pop("COLUMNS", None)
    with subprocess.Popen(
        list(argv), stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd
    ) as process:
        os.close(theirs)
        said = read_all(ours)
    return process.returncode, said.decode().replace("\r\n", "\n")


def read_all(descriptor: int) -> bytes:
    """All that is written on a pseudo-terminal until its other end is closed; closes this one."""
    parts = []
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        parts.append(chunk)
    os.close(descriptor)
    return b"".join(parts)


def drawn_lines(text: str) -> list[str]:
    """Every line that was ever on the screen, those of a display included."""
    return [line for line in MOVES.sub("\n", text).splitlines() if line.strip()]
