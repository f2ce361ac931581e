"""``cook inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cook import units
from cook.cli import options as opt
from cook.output import Mode, Output, plain, right

if TYPE_CHECKING:
    from cook.inspection import ImatrixReport, ModelReport, TraceReport


def command(
    out: Output,
    file: Path = opt.argument("FILE", "File to look into."),
    model: Path | None = opt.option(
        "--model", "The model an imatrix belongs to: counts the experts of a .dat.", metavar="GGUF"
    ),
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
    from cook.inspection import ImatrixReport, KldBase, ModelReport, inspect

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
    elif isinstance(report, KldBase):
        whole = "yes" if report.complete else f"no: {report.expected_bytes} bytes meant"
        _facts(
            out,
            {
                "file": report.path,
                "kind": report.kind,
                "context": report.context,
                "vocabulary": report.vocabulary,
                "chunks": report.chunks,
                "file size": units.size(report.file_bytes),
                "complete": whole,
            },
        )
    elif isinstance(report, ImatrixReport):
        _show_imatrix(out, report)
    else:
        _show_trace(out, report)


def _show_model(out: Output, report: ModelReport) -> None:
    known, cache = report.cache, None
    if report.kind == "model" and report.context:
        state = ", recurrent state unknown" if known and known.state is None else ""
        cache = f"{units.size(known.total)} in f16 at that context{state}" if known else "unknown"
    _facts(
        out,
        {
            "file": report.path,
            "kind": report.kind,
            "name": report.name,
            "architecture": report.architecture,
            "layers": report.layers,
            "experts": report.experts and f"{report.experts}, {report.experts_used} used",
            "context": report.context,
            "KV cache": cache,
            "vocabulary": report.vocabulary,
            "shards": report.shards if report.shards > 1 else None,
            "file size": units.size(report.file_bytes),
            "imatrix": report.imatrix,
        },
    )
    for title, shares in (("type", report.by_type), ("group", report.by_group)):
        out.data("")
        rows: list[tuple[object, ...]] = []
        for share in (*shares, report.total):
            part = None
            if share.size_bytes is not None and report.total.size_bytes:
                part = f"{100 * share.size_bytes / report.total.size_bytes:.1f} %"
            types = ", ".join(share.types) if title == "group" and share is not report.total else ""
            weights, bpw = units.count(share.elements), units.number(share.bpw, ".4f")
            size = units.size(share.size_bytes)
            rows.append((share.name, share.tensors, weights, bpw, size, part, types))
        titles = right("tensors", "weights", "bpw", "size", "share")
        out.table(rows, [title, *titles, "types" if title == "group" else ""])
    active = report.active
    if active is not None and report.experts:
        out.data("")
        rows = [
            (
                str(group.group),
                units.size(group.read_bytes),
                f"{100 * active.share(group.group):.1f} %",
            )
            for group in sorted(active.groups, key=lambda group: -group.read_bytes)
        ]
        rows.append(("total", units.size(active.read_bytes), "100.0 %"))
        out.table(rows, ["a token reads of", *right("bytes", "share")])


def _show_imatrix(out: Output, report: ImatrixReport) -> None:
    covered = None
    if report.experts:
        percent = f"{100 * report.experts_covered / report.experts:.2f} %"
        covered = f"{report.experts_covered} of {report.experts} ({percent})"
    _facts(
        out,
        {
            "file": report.path,
            "kind": f"{report.kind} ({report.format})",
            "datasets": ", ".join(report.datasets) or None,
            "chunks": report.chunks,
            "chunk tokens": report.chunk_tokens,
            "entries": report.entries,
            "experts covered": covered,
            "tensors without data": None if report.absent is None else len(report.absent),
        },
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
        titles = right("experts", "missing")
        out.table(rows, ["entry with gaps", *titles, "stored by ik", "stored by llama.cpp"])
    if report.format == "dat" and not report.expert_entries and report.absent is None:
        out.say("hint: --model GGUF tells the experts of a .dat apart")


STOPS = {"eog": "ended", "limit": "at the limit", "context": "context full", "word": "stopped"}
"""How a reply ended, in words."""


def _show_trace(out: Output, report: TraceReport) -> None:
    header = report.header
    size, each = units.size(report.file_bytes), report.bytes_per_token
    holes = f"{units.plural(report.holes, 'token')} without probabilities"
    ends = ", ".join(f"{count} {STOPS[stop]}" for stop, count in report.stops.items())
    template = header.template_sha256 if header.chat else "none, prompts as they are"
    _facts(
        out,
        {
            "file": report.path,
            "kind": f"{report.kind}, version {header.version}",
            "target": header.target_name,
            "target hash": header.target_sha256 or "not known: recorded over HTTP",
            "tokenizer": header.tokenizer_sha256 or "not known: recorded without --tokenizer",
            "chat template": template,
            "recorded by": f"{header.source}, {header.flavour} {header.engine_build}",
            "device": header.device,
            "KV cache": header.cache_type_k and f"{header.cache_type_k}, {header.cache_type_v}",
            "sampling": str(header.sampler),
            "context": header.context,
            "tokens a reply": f"at most {header.n_predict}",
            "batch width": header.batch_width,
            "candidates": f"{header.top} a token",
            "replies": f"{report.replies} ({ends})",
            "tokens": f"{report.tokens}, and {report.beyond} beyond the ends of replies",
            "holes": holes if report.holes else "none",
            "file size": size if each is None else f"{size}, {each:.0f} bytes a token",
            "complete": "no: its last reply is cut short" if report.cut_short else None,
        },
    )
    out.data("")
    rows = [(c.name, c.replies, c.prompt_tokens, c.tokens, c.holes) for c in report.categories]
    out.table(rows, ["category", *right("replies", "prompt tokens", "tokens", "holes")])
    spreads = {
        "entropy, nats (at least)": report.entropy,
        "margin of logits": report.margin,
        "probability stored": report.stored,
    }
    known = [
        (name, *(f"{value:.3f}" for value in (spread.mean, *spread.quantiles)))
        for name, spread in spreads.items()
        if spread is not None
    ]
    if known:
        out.data("")
        out.table(known, ["over tokens", *right("mean", "5 %", "25 %", "median", "75 %", "95 %")])
    if report.certain is not None:
        out.data(f"tokens above 90 % probability: {report.certain:.1%}")


def _facts(out: Output, facts: dict[str, object]) -> None:
    """A line for each fact that is known."""
    known = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, known))
    for name, value in known.items():
        if out.mode is Mode.QUIET:
            out.data(name, str(value))
        else:
            out.data(f"{name:<{width}}  {value}")
