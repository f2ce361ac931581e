"""What Linux says of processes: of one that works, and of one that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cook.engines.process.system import (
    forget_peak_rss,
    group_activity,
    memory_limit_bytes,
    peak_rss_bytes,
)

WORK = """
import sys, time
kept = bytearray(b"x") * (64 << 20)
del kept
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="SKIPPED LOUDLY: no /proc here")
def test_a_process_that_works_and_one_that_is_gone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as worker:
        worker.stdout.readline()
        activity = group_activity(worker.pid)
        assert activity.cpu_s >= 0.25
        assert 64 << 20 <= peak_rss_bytes(worker.pid) <= memory_limit_bytes()
        assert forget_peak_rss(worker.pid)
        assert 0 < peak_rss_bytes(worker.pid) < 64 << 20
        worker.stdin.close()
        worker.wait()
    assert group_activity(worker.pid) is None
    assert not forget_peak_rss(worker.pid)
    assert peak_rss_bytes(worker.pid) == 0
