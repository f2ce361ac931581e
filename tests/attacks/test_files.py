"""Whatever stands in a file that cook reads, it is used or refused by InputError, and soon.

100,000 damaged inputs under ``make soak``, the first hundredth in the tests. An input
that fails is made again by its number: ``ATTACKS["record"].input(4711)``.
"""

from __future__ import annotations

import io
import json
import signal
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

from cook.errors import InputError
from cook.formats.gguf import MetadataArray, read_gguf
from cook.formats.imatrix_file import coverage, read_imatrix, write_dat, write_gguf
from cook.formats.kld_base import read_base_header
from cook.formats.trace_file import MAGIC, ReplyHead, TraceFile, TraceWriter
from cook.formats.vocabulary import compare, read_vocabulary
from cook.inspection import report_trace
from cook.logs.log_figures import read_logs
from cook.nightly.gates import judge
from cook.nightly.history import append, night_of, read_history
from cook.nightly.pipeline import GatesSpec
from cook.output import json_text
from cook.prompts.prompt_set import load_prompts, select
from cook.record.record import read_record
from cook.record.record import to_json as record_json
from cook.report.show import shown
from cook.report.view import document as report_document
from cook.report.writing import html_page, markdown
from tests.attacks.conftest import at_length, memory_bounded
from tests.attacks.mutants import document, mutant
from tests.attacks.seeds import gguf_header, small_imatrix
from tests.nightly.nights import Series, World
from tests.report import records
from tests.traces import blank_reply, server_header

SECONDS = 120
HEAD = ReplyHead(id="a", category="c", stop="limit", prompt_tokens=3, tokens=4, emitted=4)
LOGS = Path(__file__).parents[1] / "data" / "server_logs"


@dataclass(frozen=True)
class Attack:
    """Input ``number`` of a kind as bytes, and everything that cook does with such a file."""

    count: int
    """Inputs under ``make soak``; a hundredth of them in the tests."""
    input: Callable[[int], bytes]
    use: Callable[[Path], object]


def use_gguf(path: Path) -> None:
    gguf = read_gguf(path)
    for value in gguf.metadata.values():
        if isinstance(value, MetadataArray):
            assert len(value.values()) == value.count
    for tensor in gguf.tensors:
        if tensor.size_bytes is not None:
            assert len(gguf.read_tensor_bytes(tensor.name)) == tensor.size_bytes
    vocabulary = read_vocabulary(gguf)
    assert compare(vocabulary, vocabulary) == ()


def use_imatrix(path: Path) -> None:
    imatrix = read_imatrix(path)
    assert len(coverage(imatrix)) == len(imatrix.entries)
    for entry in imatrix.entries.values():
        assert entry.mean().shape == entry.sums.shape


def use_trace(path: Path) -> None:
    trace = TraceFile(path)
    assert len(list(trace)) == len(trace)
    json_text(report_trace(path))
    _ = trace.vocabulary


def use_record(path: Path) -> None:
    record = read_record(path)
    json_text(record_json(record))
    shown(record)
    night_of(record)
    markdown(report_document(record))


def use_record_page(path: Path) -> None:
    html_page(report_document(read_record(path)))


def use_history(path: Path) -> None:
    history = read_history(path)
    if history.nights:
        history.reference(history.nights[-1].series)


def use_judged_history(path: Path) -> None:
    history = read_history(path)
    if history.nights:
        now = history.nights[-1]
        json_text(judge(now, history.reference(now.series), GatesSpec()).findings)


def use_prompts(path: Path) -> None:
    prompts = load_prompts(path)
    assert len(select(prompts, 2).prompts) <= 2


def use_logs(path: Path) -> None:
    json_text(read_logs([str(path)], io.BytesIO()))


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    """Sound files of a kind, which the damage starts from."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "seed"
        match kind:
            case "gguf":
                return (gguf_header(),)
            case "imatrix":
                write_gguf(small_imatrix(), path)
                first = path.read_bytes()
                write_dat(small_imatrix(), path)
                return (first, path.read_bytes())
            case "kld":
                return (b"_logits_" + struct.pack("<3i", 512, 1000, 2) + bytes(64),)
            case "trace":
                with TraceWriter(path, server_header()) as writer:
                    for name in ("a", "b"):
                        writer.append(blank_reply(HEAD.model_copy(update={"id": name}), known=True))
                return (path.read_bytes(),)
            case "record":
                return (json.dumps(record_json(records.record(("Q8_0",), (4,)))).encode(),)
            case "history":
                series = Series(World(prompts=4, tokens=16), seed=1, lengths=(4,))
                for _ in range(3):
                    append(path, series.measure().judged((), ()))
                return (path.read_bytes(),)
            case "prompts":
                row = {"category": "c", "prompt": "Say it.", "half": "pick"}
                return ("\n".join(json.dumps({"id": f"p{i}", **row}) for i in range(3)).encode(),)
            case "logs":
                return tuple(p.read_bytes() for p in sorted(LOGS.iterdir()))
    raise AssertionError(kind)


def of_bytes(kind: str) -> Callable[[int], bytes]:
    return lambda number: mutant(seeds(kind), number)


def record_input(number: int) -> bytes:
    """Every tenth damaged in its bytes, the others in their values."""
    if number % 10 == 0:
        return mutant(seeds("record"), number)
    return document(json.loads(seeds("record")[0]), number).encode()


def lines_input(kind: str) -> Callable[[int], bytes]:
    def make(number: int) -> bytes:
        if number % 3 == 0:
            return mutant(seeds(kind), number)
        rows = [json.loads(line) for line in seeds(kind)[0].splitlines()]
        rows[number % len(rows)] = None
        damaged = document(json.loads(seeds(kind)[0].splitlines()[0]), number)
        return "\n".join(json.dumps(r) if r is not None else damaged for r in rows).encode()

    return make


def trace_input(number: int) -> bytes:
    """Every third damaged in its bytes; else in the JSON of a block, with its checksum right."""
    raw = seeds("trace")[0]
    if number % 3 == 0:
        return mutant((raw,), number)
    blocks, at = [], len(MAGIC)
    while at < len(raw):
        text, payload = struct.unpack_from("<IQ", raw, at)
        middle, end = at + 12 + text, at + 12 + text + payload
        blocks.append((raw[at + 12 : middle], raw[middle:end]))
        at = end + 4
    which = number % len(blocks)
    json_bytes, data = blocks[which]
    damaged = mutant((data or b"\0",), number) if number % 2 else data
    blocks[which] = (document(json.loads(json_bytes), number).encode(), damaged)
    return MAGIC + b"".join(
        struct.pack("<IQ", len(one), len(other))
        + (one + other)
        + struct.pack("<I", zlib.crc32(one + other))
        for one, other in blocks
    )


ATTACKS = {
    "gguf": Attack(20_000, of_bytes("gguf"), use_gguf),
    "imatrix": Attack(20_000, of_bytes("imatrix"), use_imatrix),
    "kld base": Attack(4_000, of_bytes("kld"), read_base_header),
    "trace": Attack(14_000, trace_input, use_trace),
    "record": Attack(9_000, record_input, use_record),
    "record, its page": Attack(100, record_input, use_record_page),
    "history": Attack(11_500, lines_input("history"), use_history),
    "history, judged": Attack(400, lines_input("history"), use_judged_history),
    "prompts": Attack(14_000, lines_input("prompts"), use_prompts),
    "logs": Attack(7_000, of_bytes("logs"), use_logs),
}


@pytest.fixture
def _in_time() -> Iterator[None]:
    """An input that takes longer than the alarm was set to fails the test."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"more than {SECONDS} s for one input")

    handler = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("share", [0.01, at_length(1.0)])
@pytest.mark.parametrize("kind", ATTACKS)
def test_damaged(kind: str, share: float, tmp_path: Path, attacks: Counter[str]) -> None:
    attack = ATTACKS[kind]
    numbers = range(int(share * attack.count))
    path = tmp_path / f"{kind}.bin"
    if "page" in kind:
        html_page(report_document(records.bare()))  # loads what draws, before the bounds
    refused = 0
    with memory_bounded():
        for number in numbers:
            path.write_bytes(attack.input(number))
            signal.alarm(SECONDS)
            try:
                attack.use(path)
            except InputError as error:
                refused += 1
                if str(path) not in error.message:
                    pytest.fail(f"{kind} {number}: which file? {error}")
            except Exception as error:
                raise AssertionError(
                    f'ATTACKS["{kind}"].input({number}): {type(error).__name__}: {error}'
                ) from error
            attacks[f"inputs: {kind}"] += 1
    assert refused < max(2, len(numbers)), "the damage never gets past the door"
