"""``cook inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output

if TYPE_CHECKING:
    from cook.inspection import (
        BaseReport,
        ImatrixReport,
        ModelReport,
        Quantiles,
        TensorShare,
        TraceReport,
    )
    from cook.output import Output
    from cook.recipe.active import ActiveBytes


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
    """Show what a model, imatrix, trace or base-logits file holds.

    Reads GGUF models of both engines by their header (split ones from any shard), importance
    matrices (.dat and GGUF) with the experts that saw no token, traces of a target (conditions,
    counts, how sure it was), base-logits files of llama-perplexity, and tensor lists (.tsv).

    Examples:
      cook inspect Ling-flash-IQ1_KT.gguf
      cook inspect imatrix.dat --model Ling-flash-BF16-00001-of-00005.gguf
      cook inspect draft.gguf --json | jq .total
    """
    from cook.inspection import BaseReport, ImatrixReport, ModelReport, inspect
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
    elif isinstance(report, ImatrixReport):
        _show_imatrix(out, report)
    else:
        _show_trace(out, report)


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
    if report.active is not None and report.experts:
        out.data("")
        _reads(out, report.active)


def _reads(out: Output, active: ActiveBytes) -> None:
    """What one token reads, the group that takes most first."""
    from cook import units
    from cook.output import Column

    ordered = sorted(active.groups, key=lambda group: -group.read_bytes)
    rows = []
    for group in ordered:
        share = f"{100 * active.share(group.group):.1f} %"
        rows.append((str(group.group), units.size(group.read_bytes), share))
    rows.append(("total", units.size(active.read_bytes), "100.0 %"))
    out.table(rows, ["a token reads of", *(Column(t, "right") for t in ("bytes", "share"))])


def _shares(out: Output, title: str, shares: tuple[TensorShare, ...], total: TensorShare) -> None:
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


def _show_trace(out: Output, report: TraceReport) -> None:
    from cook import units
    from cook.output import Column

    header = report.header
    each = report.bytes_per_token
    size = units.size(report.file_bytes)
    _facts(
        out,
        [
            ("file", report.path),
            ("kind", f"{report.kind}, version {header.version}"),
            ("target", header.target_name),
            ("target hash", header.target_sha256 or "not known: recorded over HTTP"),
            ("tokenizer", header.tokenizer_sha256 or "not known: recorded without --tokenizer"),
            (
                "chat template",
                header.template_sha256 if header.chat else "none, prompts as they are",
            ),
            ("recorded by", f"{header.source}, {header.flavour} {header.engine_build}"),
            ("device", header.device),
            ("KV cache", header.cache_type_k and f"{header.cache_type_k}, {header.cache_type_v}"),
            ("sampling", str(header.sampler)),
            ("context", header.context),
            ("tokens a reply", f"at most {header.n_predict}"),
            ("batch width", header.batch_width),
            ("candidates", f"{header.top} a token"),
            ("replies", f"{report.replies} ({_ends(report.stops)})"),
            ("tokens", f"{report.tokens}, and {report.beyond} beyond the ends of replies"),
            (
                "holes",
                f"{units.plural(report.holes, 'token')} without probabilities"
                if report.holes
                else "none",
            ),
            ("file size", size if each is None else f"{size}, {each:.0f} bytes a token"),
            ("complete", "no: its last reply is cut short" if report.cut_short else None),
        ],
    )
    out.data("")
    rows = [(c.name, c.replies, c.prompt_tokens, c.tokens, c.holes) for c in report.categories]
    right = [Column(t, "right") for t in ("replies", "prompt tokens", "tokens", "holes")]
    out.table(rows, ["category", *right])
    spreads = {
        "entropy, nats (at least)": report.entropy,
        "margin of logits": report.margin,
        "probability stored": report.stored,
    }
    known = [_spread_row(name, spread) for name, spread in spreads.items() if spread is not None]
    if known:
        out.data("")
        titles = ("mean", "5 %", "25 %", "median", "75 %", "95 %")
        out.table(known, ["over tokens", *(Column(t, "right") for t in titles)])
    if report.certain is not None:
        out.data(f"tokens above 90 % probability: {report.certain:.1%}")


def _ends(stops: dict[str, int]) -> str:
    words = {"eog": "ended", "limit": "at the limit", "context": "context full", "word": "stopped"}
    return ", ".join(f"{count} {words[stop]}" for stop, count in stops.items())


def _spread_row(name: str, spread: Quantiles) -> tuple[str, ...]:
    return (name, *(f"{value:.3f}" for value in (spread.mean, *spread.quantiles)))


def _facts(out: Output, facts: list[tuple[str, object]]) -> None:
    from cook.output import Mode

    known = [(name, value) for name, value in facts if value is not None]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        if out.mode is Mode.QUIET:
            out.data(name, str(value))
        else:
            out.data(f"{name:<{width}}  {value}")
