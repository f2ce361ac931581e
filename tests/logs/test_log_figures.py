"""Statistics over logs: both ways of averaging, and which requests belong together."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError
from cook.logs.log_figures import (
    LogReport,
    check_plot_path,
    read_logs,
    report,
    spread,
    write_scatter,
)
from cook.logs.requests import LoggedRequest, ServerLog, read_server_log

DATA = Path(__file__).parents[1] / "data" / "server_logs"


def reported(*requests: LoggedRequest, names: tuple[str, ...] = ("a",)) -> LogReport:
    """Of as many logs as there are names, each with these requests."""
    log = ServerLog(requests, (), len(requests), 0, (), 0)
    return report([(name, log) for name in names])


def request(drafted: int, accepted: int, n: int, ms: float, **models: Any) -> LoggedRequest:
    times: dict[str, Any] = {"predicted_n": n, "predicted_ms": ms}
    return LoggedRequest(1, **models, **times, drafted=drafted, accepted=accepted)


def test_tokens_and_requests_are_weighed_apart() -> None:
    long, short = request(900, 450, 1001, 100_000.0), request(100, 100, 101, 5_000.0)
    pair = reported(long, short).pairs[0]
    acceptance, speed = pair.figure("acceptance"), pair.figure("decode speed")
    assert acceptance.spread.mean == 0.75
    assert acceptance.total.value == 0.55
    assert (acceptance.total.numerator, acceptance.total.denominator) == (550, 1000)
    assert speed.spread.mean == 15.0
    assert speed.total.value == pytest.approx(1100 / 105)
    assert pair.correlation is None


def test_spread() -> None:
    found = spread([1.0, 2.0, 3.0, 6.0])
    assert (found.n, found.mean, found.median, found.low, found.high) == (4, 3.0, 2.5, 1.0, 6.0)
    assert found.stdev == pytest.approx(2.1602, abs=1e-4)
    assert spread([4.0]).stdev is None


def test_correlation_of_acceptance_and_speed() -> None:
    rising = [request(100, 40 + i, 101, 10_000 - 100.0 * i) for i in range(5)]
    assert (reported(*rising).pairs[0].correlation or 0.0) > 0.99
    flat = [request(100, 40, 101, 10_000.0 + i) for i in range(5)]
    assert reported(*flat).pairs[0].correlation is None


def test_requests_without_a_draft_have_a_speed_only() -> None:
    pair = reported(LoggedRequest(1, target="T", predicted_n=11, predicted_ms=1000.0)).pairs[0]
    assert [f.name for f in pair.figures] == ["decode speed"]


def test_pairs_are_by_draft_and_else_by_file() -> None:
    named = [request(10, 5, 20, 100.0, target="T", draft=d) for d in ("A", "B")]
    alias = request(10, 5, 20, 100.0, target="T")
    for found, names in (
        (reported(*named, names=("a", "b")), ["T + A", "T + B"]),
        (reported(alias, names=("a", "b")), ["T (a)", "T (b)"]),
        (reported(alias), ["T"]),
    ):
        assert [pair.name for pair in found.pairs] == names


def test_the_thread_s_figures() -> None:
    pairs = report([("j", read_server_log((DATA / "ik-verbose-2025.log").open("rb")))]).pairs
    assert f"{pairs[1].figure('acceptance').total.value:.2%}" == "75.16%"
    assert f"{pairs[1].figure('decode speed as logged').total.value:.2f}" == "8.24"


def test_what_was_not_read_is_said() -> None:
    text = b"hello\ndraft acceptance = 0.90000 ( 1 accepted / 2 generated)"
    found = read_logs(["-"], io.BytesIO(text))
    assert len(found.warnings) == 2
    assert "line 2: 1 of 2 is not 0.90000" in found.warnings[1]
    assert found.pairs == ()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["absent.log"], "absent.log: No such file"),
        (["."], "Is a directory"),
        (["a\0b"], "bad file name"),
        (["-", "-"], "once"),
    ],
)
def test_what_cannot_be_read_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_logs(names, io.BytesIO())


def test_the_scatter_has_a_point_a_request(tmp_path: Path) -> None:
    three = reported(*(request(4, n, 5, 40.0) for n in (1, 2, 3)))
    assert write_scatter(three.pairs, tmp_path / "plot.svg") == 3
    assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="nothing to plot"):
        write_scatter([], tmp_path / "plot.svg")


@pytest.mark.parametrize(
    ("name", "message"), [("plot.pdf", r"svg or \.png"), ("none/plot.svg", "is no directory")]
)
def test_a_plot_has_its_place_and_form(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_plot_path(tmp_path / name)
