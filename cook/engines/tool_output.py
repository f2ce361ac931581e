"""What llama-quantize, -imatrix and -perplexity print, read from their raw output.

Their results when they have ended, and how far they are while they run (:func:`meter`). Both
engines; the wording is in docs/internals/engines.md#output-of-llama-quantize and the sections after
it. Output is never trusted: whatever does not match, or is not a finite number, is simply not there
(``None``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cook.engines.process.supervisor import Supervisor

# Lines are split over two streams and cut by other messages: log prefixes may stand anywhere.
_PREFIX = re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} [IWED] ", re.MULTILINE)
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_HEAD = re.compile(
    r"\[\s{0,8}(\d{1,7})/\s{0,8}(\d{1,7})\]\s+(\S{1,256})\s+- \[[\d, ]{1,80}\],"
    r" type =\s*(\S{1,32}), "
)
_CONVERTING = re.compile(r"converting to (\S{1,32}) \.\.")
_SIZE = re.compile(r"size =\s*(\d+\.\d+) Mi?B(?:\s*->\s*(\d+\.\d+) Mi?B)?(?:\s\((\w{1,32})\))?")
_QUANTIZE_DONE = re.compile(r"quantize time =\s*[\d.]+ ms")
_FALLBACK_ML = re.compile(
    r"warning: (\S{1,256})\s+- ncols\s+(\d+) not divisible by\s+(\d+) "
    r"\(required for type\s+(\S+)\) -> falling back to\s+(\S+)"
)
_FALLBACK_IK = re.compile(r"using fallback quantization (\S+)")
_NO_WEIGHTS = re.compile(r"did not find weights for (\S{1,256})")
_FINAL = re.compile(rf"Final estimate: PPL[^\n]{{0,80}}?= {_NUMBER} \+/- {_NUMBER}")
_CHUNK = re.compile(r"\[(\d{1,7})\]([-+]?(?:\d+\.\d+|nan|inf)|-nan),")
_PLAN = re.compile(r"(?:computing|perplexity) over (\d{1,7}) chunks")
_IMATRIX_WARNING = re.compile(
    r"save_imatrix(?:_legacy)?: (?:warning: )?"
    r"(?:entry '[^'\n]{1,300}' has[^\n]*|storing only[^\n]*)"
)
_KLD_ROW = re.compile(r"^\s*(\d{1,7})\s+[-\d.]+ ±", re.MULTILINE)
_BUFFER = re.compile(
    rb"(?P<device>[\w\[\]:.\- ]*?)\s*"
    rb"(?P<kind>model|KV|compute|output|RS)?\s*buffer size\s*=\s*(?P<mib>\d+(?:\.\d+)?) MiB"
)
_HOST = re.compile(rb"^(CPU|AMX|BLAS|ACCEL)|_?Host$")
_KLD_FIELDS = {
    "perplexity": ("Mean PPL(Q)", True),
    "base_perplexity": ("Mean PPL(base)", False),
    "perplexity_ratio": ("Mean PPL(Q)/PPL(base)", True),
    "mean_kld": ("Mean    KLD", True),
    "max_kld": ("Maximum KLD", False),
    "p99_kld": ("99.0%   KLD", False),
    "median_kld": ("Median  KLD", False),
    "same_top_percent": ("Same top p", True),
    "rms_delta_p_percent": ("RMS Δp", False),
}


@dataclass(frozen=True)
class QuantizeLog:
    """What llama-quantize did: tensor name -> type, and what it warned of."""

    types: dict[str, str]
    warnings: tuple[str, ...]


def parse_quantize_log(text: str) -> QuantizeLog:
    """Tensor lines and warnings from the standard error of llama-quantize, either engine.

    Read as a stream: between the head of a tensor and its size other messages may stand, and a
    tensor in work has no size yet (it is left out).
    """
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    types: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=False):
        body = text[head.end() : min(end, head.end() + 4096)]
        if size := _SIZE.search(body):
            converting = _CONVERTING.search(body, 0, size.start())
            # A dry run names the new type in parentheses after the sizes.
            types[head[3]] = converting[1] if converting else size[3] or head[4]
    warnings = [
        f"{name}: rows of {columns} do not divide by {block}: {wanted} became {got}"
        for name, columns, block, wanted, got in _FALLBACK_ML.findall(text)
    ]
    warnings += [
        f"a tensor's rows do not divide: fallback to {got}" for got in _FALLBACK_IK.findall(text)
    ]
    warnings += [f"{name}: no imatrix data" for name in _NO_WEIGHTS.findall(text)]
    return QuantizeLog(types, tuple(warnings))


def quantize_finished(stdout: str) -> bool:
    """Whether the tool printed its last line: the only sign of success besides the status."""
    return _QUANTIZE_DONE.search(stdout) is not None


def parse_final_estimate(text: str) -> tuple[float, float] | None:
    """``Final estimate: PPL = a +/- b`` of perplexity or imatrix, the value and its standard error;
    None if absent or not finite."""
    if found := _FINAL.search(text):
        value, error = _finite(found[1]), _finite(found[2])
        if value is not None and error is not None and value > 0 and error >= 0:
            return value, error
    return None


def parse_chunks(text: str) -> int | None:
    """Number of the last ``[n]ppl,`` printed."""
    return max((int(number) for number, _ in _CHUNK.findall(text)), default=None)


def parse_planned_chunks(text: str) -> int | None:
    """Chunks that the tool announced."""
    found = _PLAN.search(text)
    return int(found.group(1)) if found else None


def not_finite(text: str) -> str | None:
    """The sign of a broken computation in perplexity or imatrix output, if there is one."""
    for pattern in (
        r"Unexpected negative standard deviation of log\(prob\)",
        r"non-finite values detected in \S+|detected NaNs in \S+",
        r"\[\d+\]-?(?:nan|inf),",
        r"PPL[^\n]{0,80}?= -?(?:nan|inf)",
    ):
        if found := re.search(pattern, text):
            return found.group()
    return None


def parse_imatrix_warnings(text: str) -> tuple[str, ...]:
    """What llama-imatrix says of entries with partial or no data."""
    found = (" ".join(m.group().split()) for m in _IMATRIX_WARNING.finditer(_PREFIX.sub("", text)))
    return tuple(dict.fromkeys(found))


def parse_divergence(stdout: str) -> dict[str, Any] | None:
    """Statistics of ``--kl-divergence`` by DivergenceResult's names; None unless all are finite.

    Values with an error come as ``<name>`` and ``<name>_error``. Only the error of the ratio
    may be None: of a model equal to its base the engine's variance is a tiny negative number.
    """
    values: dict[str, Any] = {}
    for name, (label, has_error) in _KLD_FIELDS.items():
        pattern = rf"^{re.escape(label)}\s*:\s*{_NUMBER}%?(?:\s*±\s*{_NUMBER})?"
        found = re.search(pattern, stdout, re.MULTILINE)
        value = _finite(found.group(1)) if found else None
        if found is None or value is None:
            return None
        values[name] = value
        if has_error:
            error = _finite(found.group(2) or "")
            near_base = name == "perplexity_ratio" and abs(value - 1) < 1e-4
            if (error is None and not near_base) or (error or 0.0) < 0:
                return None
            values[f"{name}_error"] = error
    return values


def parse_divergence_chunks(stdout: str) -> int | None:
    """Number of the last row of the ``--kl-divergence`` table."""
    return max(map(int, _KLD_ROW.findall(stdout)), default=None)


def progress_of(text: str, total: int | None) -> tuple[int, int | None] | None:
    """``(done, total)`` from the newest output of any of the three tools."""
    heads = list(_HEAD.finditer(text))
    if heads:
        return int(heads[-1].group(1)), int(heads[-1].group(2))
    done = parse_chunks(text) or parse_divergence_chunks(text)
    return (done, total) if done is not None else None


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_KEEP = 2048


def meter(supervisor: Supervisor) -> Callable[[str, bytes], None]:
    """An ``on_output`` callback that reports to ``supervisor.on_progress`` how far a tool is.

    Output comes in arbitrary pieces and without newlines, so each stream keeps its last part.
    """
    report, last = supervisor.on_progress, dict[str, str]()
    total: int | None = None
    printed: tuple[int, int | None] | None = None

    def read(stream: str, chunk: bytes) -> None:
        nonlocal total, printed
        if report is None:
            return
        text = last.get(stream, "") + chunk[-_KEEP:].decode("utf-8", errors="replace")
        last[stream] = text[-_KEEP:]
        total = parse_planned_chunks(text) if total is None else total
        progress = progress_of(text, total)
        if progress is not None and progress != printed:
            printed = progress
            report(*progress)

    return read


def parse_buffers(log: bytes) -> tuple[dict[str, int], int]:
    """Bytes by kind (model, KV, compute, output, RS) in an engine's start-up log, and how many of
    all are on devices: what is called CPU something or something Host is the host's memory."""
    sizes: dict[str, float] = {}
    device = 0.0
    for line in log.splitlines():
        # The search takes 0.2 ms where it finds nothing, and a context writes 600 such lines.
        if b"buffer size" in line and (match := _BUFFER.search(line)):
            kind = (match["kind"] or b"").decode()
            if not kind and b"load_tensors" in line:
                kind = "model"  # ik's "llm_load_tensors: CPU buffer size"
            if kind and b"less the required" not in line:
                found = float(match["mib"]) * (1 << 20)
                sizes[kind] = sizes.get(kind, 0.0) + found
                name = match["device"].split(b":")[-1].strip()
                device += 0.0 if not name or _HOST.search(name) else found
    return {kind: round(size) for kind, size in sizes.items()}, round(device)
