"""What a plan and an inspection of a source of 2 TB cost: time and memory, from headers alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.giant import write_giant
from bench.study import Study

MOST_S = 2.0
MOST_BYTES = 300e6
MANY_MOST_S = 10.0

FEW = """\
quants:
  - {name: a, type: Q4_K_M, rules: [{routed_experts: q2_K}, {attention: q8_0}]}
  - {name: b, type: Q4_K_M, rules: [{routed_experts: q3_K}, {attention: q6_K}]}
  - {name: c, type: Q4_K_M, mixture: pure}
"""
MANY = r"""
sweep:
  name: '{1}-{2}-{3}-{4}-{5}'
  type: Q4_K_M
  over:
    'blk\.7\d\.ffn_down_exps': [q8_0, q6_K]
    routed_experts: [q2_K, q3_K, q4_K, q5_K, q6_K]
    attention: [q4_K, q5_K, q6_K, q8_0, q4_0]
    shared_experts: [q4_K, q5_K, q6_K, q8_0, q4_0]
    output: [q6_K, q8_0]
"""


def recipe(source: Path, quants: str, *, scored: bool = False) -> str:
    """A recipe of ``quants`` of ``source``; with ``scored`` drafting for the source itself."""
    score = f"score: {{target: {{source: '{source}'}}}}\n" if scored else ""
    return f"version: 1\nname: giant\nmodel: {{source: '{source}'}}\n{quants}{score}"


@dataclass(frozen=True)
class Cost:
    """Of one command, from its start to its end; ``peak_bytes`` of resident memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


_APART = """
import json, os, sys, time
quiet = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
started = time.monotonic()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
wall_s = time.monotonic() - started
code = os.waitstatus_to_exitcode(status)
print(json.dumps([code, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10]))
"""
"""Runs its arguments as a command, from a process that is small: Linux counts as a program's peak
what the process that started it held at that moment, and a test run holds more than cook does."""


def cost(command: Sequence[str], home: Path) -> Cost:
    """Run cook's ``command`` in a process of its own; SystemExit where it fails."""
    argv = [sys.executable, "-m", "cook", *command]
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _APART, *argv],
        env={**os.environ, "COOK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, wall_s, cpu_s, peak_bytes = json.loads(ran.stdout)
    if code != 0:
        raise SystemExit(f"{' '.join(argv)}: exit {code}")
    return Cost(wall_s, cpu_s, peak_bytes)


def scale() -> Study:
    """Each command once to warm up, then timed; a plan has no history to go by, so it probes."""
    lines, within = [], True
    with TemporaryDirectory(prefix="cook-bench-") as folder:
        root = Path(folder)
        giant = write_giant(root)
        cases = [("inspect", ["inspect", str(giant)], MOST_S)]
        for name, quants, scored, most_s in (
            ("plan of 3 quants", FEW, False, MOST_S),
            ("plan of 500 quants", MANY, False, MANY_MOST_S),
            ("plan of 500 drafts scored", MANY, True, MANY_MOST_S),
        ):
            path = root / f"{name.replace(' ', '-')}.yaml"
            path.write_text(recipe(giant, quants, scored=scored))
            cases.append((name, ["plan", str(path)], most_s))
        for name, command, most_s in cases:
            cost(command, root / "home")
            found = cost(command, root / "home")
            fits = found.wall_s <= most_s and found.peak_bytes <= MOST_BYTES
            within = within and fits
            lines.append(
                f"scale: {name} over 2 TB: {found.wall_s:.2f} s (at most {most_s:g}), "
                f"{found.cpu_s:.2f} s of processor, {found.peak_bytes / 1e6:.0f} MB "
                f"(at most {MOST_BYTES / 1e6:.0f}): {'ok' if fits else 'OUT OF BOUNDS'}"
            )
    return Study(tuple(lines), within)
