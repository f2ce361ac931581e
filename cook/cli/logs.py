"""``cook logs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.cli import options as opt
from cook.output import Mode, Output, plain, right
from cook.units import number, plural

if TYPE_CHECKING:
    from cook.logs.log_figures import LogReport, Pair, PairFigure


def command(
    out: Output,
    files: list[str] = opt.argument("FILE...", "Server logs; - is standard input."),
    each: bool = opt.flag("--each", "One row a request, not the figures."),
    plot: Path | None = opt.option(
        "--plot", "Scatter of acceptance and speed (.svg or .png).", metavar="FILE"
    ),
) -> None:
    """Show acceptance and speed from llama-server logs.

    Reads logs of llama.cpp and ik_llama.cpp (text, --log-jsonl, --log-format json, UTF-16 too),
    behind whatever journalctl, containers, kubectl, a router or grep -n put in front of a line,
    saved answers with timings, and tables of llama-sweep-bench. Lines with the engine's words that
    could not be read are counted and shown; a log of nothing else is an error. Requests are grouped
    by target and draft where the log names them. "of totals" weighs every token
    alike (accepted over drafted, tokens over time), the mean every request. Speeds count the
    tokens after the first.

    Examples:

      cook logs server.log
      journalctl -u llama-server -o cat | cook logs -
      cook logs iq1_kt.log iq2_kl.log --plot scatter.svg
      cook logs server.log --each --quiet > requests.tsv
      cook logs server.log --json | jq '.pairs[].figures[] | select(.name == "acceptance")'
    """
    import sys

    from cook.logs.log_figures import check_plot_path, read_logs, write_scatter

    if plot is not None:
        check_plot_path(plot)
    report = read_logs(files, sys.stdin.buffer)
    for warning in report.warnings:
        out.warn(warning)
    document: dict[str, Any] = plain(report)
    for raw, pair in zip(document["pairs"], report.pairs, strict=True):
        for shown, figure in zip(raw["figures"], pair.figures, strict=True):
            shown["total"]["value"] = figure.total.value
        for shown, request in zip(raw["requests"], pair.requests, strict=True):
            shown["acceptance"] = request.acceptance
            shown["decode_tokens_per_s"] = request.decode_tokens_per_s
    out.emit(document)
    if each:
        _show_requests(out, report)
    else:
        for index, pair in enumerate(report.pairs):
            _show_pair(out, pair, first=index == 0)
        _show_sweeps(out, report)
    if plot is not None:
        count = write_scatter(report.pairs, plot)
        out.say(f"{plot}: {count} points")


def _show_pair(out: Output, pair: Pair, first: bool) -> None:
    quiet = out.mode is Mode.QUIET
    if not quiet:
        if not first:
            out.data("")
        out.data(f"{pair.name}: {plural(len(pair.requests), 'request')}")
    titles = ("N", "mean", "median", "sd", "least", "most", "of totals", "95 % interval", "totals")
    rows = [_row(figure) for figure in pair.figures]
    if quiet:
        out.table([(pair.name, *row) for row in rows], ["models", "figure", *titles])
        return
    out.table(rows, ["figure", *right(*titles)])
    if pair.correlation is not None:
        out.data(f"acceptance and decode speed correlate by {pair.correlation:+.2f}")
    if pair.by_depth:
        shares = ", ".join(f"{d.accepted}/{d.drafted}" for d in pair.by_depth)
        out.data(f"accepted/drafted by position in the draft: {shares}")


def _show_sweeps(out: Output, report: LogReport) -> None:
    """llama-sweep-bench: a row a depth, a column a table, so that models stand side by side."""
    for file in report.files:
        depths = sorted({row.n_kv for rows in file.sweeps for row in rows})
        for what in ("decode", "prompt"):
            speed = f"{what}_tokens_per_s"
            columns = [{row.n_kv: getattr(row, speed) for row in rows} for rows in file.sweeps]
            shown = [(d, *(number(column.get(d)) for column in columns)) for d in depths]
            tables = [f"table {n}, t/s" for n in range(1, len(columns) + 1)]
            if shown:
                out.table(
                    [(file.file, what, *row) for row in shown],
                    ["file", "speed", *right("context", *tables)],
                )


def _row(figure: PairFigure) -> tuple[object, ...]:
    spread, total = figure.spread, figure.total

    def shown(value: float | None) -> str | None:
        share = figure.name == "acceptance" and value is not None
        return f"{100 * value:.2f} %" if share and value is not None else number(value)

    interval = None
    if total.low is not None and total.high is not None:
        interval = f"{shown(total.low)} to {shown(total.high)}"
    return (
        f"{figure.name}, {figure.unit}" if figure.unit else figure.name,
        spread.n,
        shown(spread.mean),
        shown(spread.median),
        shown(spread.stdev),
        shown(spread.low),
        shown(spread.high),
        shown(total.value),
        interval,
        f"{_amount(total.numerator)}/{_amount(total.denominator)}"
        + (" s" if figure.unit == "t/s" else ""),
    )


def _show_requests(out: Output, report: LogReport) -> None:
    titles = (
        *("line", "prompt tokens", "prompt ms", "tokens", "decode ms"),
        *("drafted", "accepted", "acceptance", "t/s", "t/s as logged"),
    )
    rows = [
        (
            pair.name,
            point.file,
            point.line,
            point.prompt_n,
            number(point.prompt_ms),
            point.predicted_n,
            number(point.predicted_ms),
            point.drafted,
            point.accepted,
            number(point.acceptance, ".4f"),
            number(point.decode_tokens_per_s),
            number(point.logged_tokens_per_s),
        )
        for pair in report.pairs
        for point in pair.requests
    ]
    out.table(rows, ["models", "file", *right(*titles)])


def _amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
