"""The scatter of a log."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.logs.log_figures import report
from cook.logs.requests import read_server_log
from cook.logs.scatter import check_plot_path, write_scatter

ANSWER = (
    '{"timings": {"predicted_n": 5, "predicted_ms": 40.0, "draft_n": 4, "draft_n_accepted": %d}}\n'
)


def test_a_point_a_request(tmp_path: Path) -> None:
    log = read_server_log(BytesIO("".join(ANSWER % n for n in (1, 2, 3)).encode()))
    pairs = report([("log", log)]).pairs
    plot = tmp_path / "plot.svg"
    count = sum(len(pair.requests) for pair in pairs)
    assert count
    assert write_scatter(pairs, plot) == count
    assert "<svg" in plot.read_text(encoding="utf-8")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to plot"):
        write_scatter([], tmp_path / "plot.svg")
    with pytest.raises(InputError, match=r"svg or \.png"):
        check_plot_path(tmp_path / "plot.pdf")
    with pytest.raises(InputError, match="is no directory"):
        check_plot_path(tmp_path / "none" / "plot.svg")
