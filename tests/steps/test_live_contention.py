"""Others' use of the processors is seen, and our own is not held against us."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from cook.steps.live import TOLERATED_CORES, Watch, told

SPIN = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"


def test_a_busy_neighbour_is_seen_and_our_own_child_is_not() -> None:
    watch = Watch.start()
    spinner = subprocess.Popen([sys.executable, "-c", SPIN])
    time.sleep(1.2)
    with_it = watch.others_cores(0.0)
    without_it = watch.others_cores(1.1)
    spinner.wait()
    if with_it is None or without_it is None:
        pytest.skip("the kernel does not tell processor time here")
    assert with_it > 0.4
    assert without_it < with_it


def test_unknown_is_unknown() -> None:
    assert Watch.start().others_cores(None) is None
    assert told(None) is None


def test_little_is_not_told() -> None:
    assert told(TOLERATED_CORES) is None
    assert "other programs kept 1.0 of" in str(told(1.0))
