"""``cook inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output

if TYPE_CHECKING:
    from cook.inspection import BaseReport, ImatrixReport, ModelReport, Share
    from cook.output import Output


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to look into.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="GGUF",
            help="The model an imatrix belongs to: counts the experts of a .dat.",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what a model, imatrix or base-logits file holds.

    Reads GGUF models of both engines by their header (split ones from any shard), importance
    matrices (.dat and GGUF) with the experts that saw no token, base-logits files of
    llama-perplexity, and tensor lists (.tsv).

    Examples:
      cook inspect Ling-flash-IQ1_KT.gguf
      cook inspect imatrix.dat --model Ling-flash-BF16-00001-of-00005.gguf
      cook inspect draft.gguf --json | jq .total
    """
    from cook.inspection import BaseReport, ModelReport, inspect
    from cook.output import plain

    out = open_output(json, quiet)
    report = inspect(file, model)
    document = plain(report)
    if isinstance(report, ModelReport):
        document["total"]["bpw"] = report.total.bpw
        for key in ("by_type", "by_group"):
            for entry, share in zip(document[key], getattr(report, key), strict=True):
                entry["bpw"] = share.bpw
    out.emit(document)
    if isinstance(report, ModelReport):
        _show_model(out, report)
    elif isinstance(report, BaseReport):
        _show_base(out, report)
    else:
        _show_imatrix(out, report)


def _show_model(out: Output, report: ModelReport) -> None:
    from cook import units

    facts: list[tuple[str, object]] = [
        ("file", report.path),
        ("kind", report.kind),
        ("name", report.name),
        ("architecture", report.architecture),
        ("layers", report.layers),
        ("experts", report.experts and f"{report.experts}, {report.experts_used} used"),
        ("context", report.context),
        ("vocabulary", report.vocabulary),
        ("shards", report.shards if report.shards > 1 else None),
        ("file size", units.size(report.file_bytes)),
        ("imatrix", report.imatrix),
    ]
    _facts(out, facts)
    out.data("")
    _shares(out, "type", report.by_type, report.total)
    out.data("")
    _shares(out, "group", report.by_group, report.total)


def _shares(out: Output, title: str, shares: tuple[Share, ...], total: Share) -> None:
    from cook import units
    from cook.output import Column

    rows = []
    for share in (*shares, total):
        part = None
        if share.size_bytes is not None and total.size_bytes:
            part = f"{100 * share.size_bytes / total.size_bytes:.1f} %"
        bpw = None if share.bpw is None else f"{share.bpw:.4f}"
        amount = units.count(share.elements)
        types = ", ".join(share.types) if title == "group" and share is not total else ""
        rows.append(
            (share.name, share.tensors, amount, bpw, units.size(share.size_bytes), part, types)
        )
    right = [Column(t, "right") for t in ("tensors", "weights", "bpw", "size", "share")]
    out.table(rows, [title, *right, "types" if title == "group" else ""])


def _show_imatrix(out: Output, report: ImatrixReport) -> None:
    from cook.output import Column

    percent = f"{100 * report.experts_covered / report.experts:.2f} %" if report.experts else None
    covered = f"{report.experts_covered} of {report.experts} ({percent})" if percent else None
    _facts(
        out,
        [
            ("file", report.path),
            ("kind", f"{report.kind} ({report.format})"),
            ("datasets", ", ".join(report.datasets) or None),
            ("chunks", report.chunks),
            ("chunk tokens", report.chunk_tokens),
            ("entries", report.entries),
            ("experts covered", covered),
            ("tensors without data", None if report.absent is None else len(report.absent)),
        ],
    )
    if report.gaps:
        out.data("")
        rows = [
            (
                gap.name,
                gap.experts,
                gap.missing,
                "yes" if gap.stored_by_ik else "no",
                "yes" if gap.stored_by_llama_cpp else "no",
            )
            for gap in report.gaps
        ]
        right = [Column(t, "right") for t in ("experts", "missing")]
        out.table(rows, ["entry with gaps", *right, "stored by ik", "stored by llama.cpp"])
    if report.format == "dat" and not report.expert_entries and report.absent is None:
        out.say("hint: --model GGUF tells the experts of a .dat apart")


def _show_base(out: Output, report: BaseReport) -> None:
    from cook import units

    _facts(
        out,
        [
            ("file", report.path),
            ("kind", report.kind),
            ("context", report.context),
            ("vocabulary", report.vocabulary),
            ("chunks", report.chunks),
            ("file size", units.size(report.file_bytes)),
            ("complete", "yes" if report.complete else f"no: {report.expected_bytes} bytes meant"),
        ],
    )


def _facts(out: Output, facts: list[tuple[str, object]]) -> None:
    from cook.output import Mode

    known = [(name, value) for name, value in facts if value is not None]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        quiet = out.mode is Mode.QUIET
        out.data(f"{name}\t{value}" if quiet else f"{name:<{width}}  {value}")
