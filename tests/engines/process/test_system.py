"""What Linux says of processes: of one that works, and of one that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cook.engines.process.system import (
    forget_peak_rss,
    group_activity,
    memory_limit_bytes,
    peak_rss_bytes,
    waited_for_cpu_s,
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


no_proc = pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="SKIPPED LOUDLY: no /proc here"
)


@no_proc
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


@no_proc
def test_threads_wait_for_a_processor_that_others_have() -> None:
    """Three programs that compute on one processor: each waits two thirds of the time."""
    one = str(min(os.sched_getaffinity(0)))
    pin = f"import os; os.sched_setaffinity(0, {{{one}}})\nwhile True: pass"
    with ExitStack() as ends:
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", pin])
            ends.callback(process.wait)
            ends.callback(process.kill)
        time.sleep(0.5)
        before, began = waited_for_cpu_s(process.pid), time.monotonic()
        time.sleep(1.0)
        ((id, waited_s),) = waited_for_cpu_s(process.pid).items()
        assert id == str(process.pid)
        assert waited_s - before[id] > 0.5 * (time.monotonic() - began)
    assert waited_for_cpu_s(process.pid) == {}, "it is gone"
