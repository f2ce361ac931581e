"""Statistics over logs: both ways of averaging, and which requests belong together."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.logs.log_figures import read_logs, report, spread
from cook.logs.requests import LoggedRequest, ServerLog, read_server_log

DATA = Path(__file__).parents[1] / "data" / "server_logs"


def log(*requests: LoggedRequest) -> ServerLog:
    return ServerLog(tuple(requests), (), len(requests), 0, (), 0)


def request(
    line: int,
    drafted: int,
    accepted: int,
    n: int,
    ms: float,
    *,
    target: str | None = None,
    draft: str | None = None,
) -> LoggedRequest:
    return LoggedRequest(
        line,
        target,
        draft,
        predicted_n=n,
        predicted_ms=ms,
        drafted=drafted,
        accepted=accepted,
    )


def test_tokens_and_requests_are_weighed_apart() -> None:
    long, short = request(1, 900, 450, 1001, 100_000.0), request(2, 100, 100, 101, 5_000.0)
    pair = report([("a.log", log(long, short))]).pairs[0]
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
    rising = [request(i, 100, 40 + i, 101, 10_000 - 100.0 * i) for i in range(5)]
    found = report([("a.log", log(*rising))]).pairs[0].correlation
    assert found is not None
    assert found > 0.99
    flat = [request(i, 100, 40, 101, 10_000.0 + i) for i in range(5)]
    assert report([("a.log", log(*flat))]).pairs[0].correlation is None


def test_requests_without_a_draft_have_a_speed_only() -> None:
    plain = LoggedRequest(1, target="T", predicted_n=11, predicted_ms=1000.0)
    pair = report([("a.log", log(plain))]).pairs[0]
    assert [f.name for f in pair.figures] == ["decode speed"]
    assert pair.name == "T"


def test_pairs_are_told_apart_by_draft_and_else_by_file() -> None:
    named = [request(1, 10, 5, 20, 100.0, target="T", draft=d) for d in ("A", "B")]
    alias = request(1, 10, 5, 20, 100.0, target="T")
    assert [p.name for p in report([("a", log(*named)), ("b", log(*named))]).pairs] == [
        "T + A",
        "T + B",
    ]
    both = report([("a", log(alias)), ("b", log(alias))]).pairs
    assert [p.name for p in both] == ["T (a)", "T (b)"]
    assert [p.name for p in report([("a", log(alias))]).pairs] == ["T"]


def test_the_thread_s_figures() -> None:
    pairs = report([("j", read_server_log((DATA / "ik-verbose-2025.log").open("rb")))]).pairs
    ling = pairs[1].figure("acceptance")
    speed = pairs[1].figure("decode speed as logged")
    assert f"{ling.total.value:.2%}" == "75.16%"
    assert f"{speed.total.value:.2f}" == "8.24"


def test_what_was_not_read_is_said() -> None:
    found = read_logs(
        ["-"], io.BytesIO(b"hello\ndraft acceptance = 0.90000 ( 1 accepted / 2 generated)")
    )
    assert len(found.warnings) == 2
    assert "line 2: 1 of 2 is not 0.90000" in found.warnings[1]
    assert found.pairs == ()


@pytest.mark.parametrize("name", ["absent.log", ".", "a\0b"])
def test_a_file_that_cannot_be_read(name: str) -> None:
    with pytest.raises(InputError):
        read_logs([name], io.BytesIO())


def test_standard_input_once() -> None:
    with pytest.raises(InputError, match="once"):
        read_logs(["-", "-"], io.BytesIO())
