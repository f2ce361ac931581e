"""A trace summed up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cook.formats.trace_file import TraceWriter
from cook.inspection import report_trace
from tests.traces import even_reply, server_header


def test_counts_and_spreads(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    with TraceWriter(path, server_header(top=2)) as writer:
        writer.append(even_reply("a", [True, False, True]))
        writer.append(even_reply("b", [True, True, False], "prose", beyond=1))
    report = report_trace(path)
    assert (report.replies, report.tokens, report.beyond, report.holes) == (2, 5, 1, 1)
    assert report.stops == {"limit": 1, "eog": 1}
    assert [(c.name, c.tokens, c.holes) for c in report.categories] == [
        ("code", 3, 1),
        ("prose", 2, 0),
    ]
    assert report.entropy.mean == pytest.approx(math.log(2), abs=1e-3)
    assert report.stored.quantiles == pytest.approx((1.0,) * 5, abs=1e-3)
    assert report.margin.mean == pytest.approx(0.25)
    assert report.certain == 0.0
    assert report.bytes_per_token == path.stat().st_size / 5


def test_a_trace_without_probabilities_or_replies(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    with TraceWriter(path, server_header(top=2)) as writer:
        empty = report_trace(path)
        writer.append(even_reply("a", [False, False]))
    assert (empty.tokens, empty.bytes_per_token, empty.entropy) == (0, None, None)
    report = report_trace(path)
    assert (report.entropy, report.margin, report.certain) == (None, None, None)
    assert report.holes == 2
