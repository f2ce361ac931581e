"""Server logs: every form that the engines write, told once each, whatever stands between."""

from __future__ import annotations

import codecs
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.logs import requests
from cook.logs.requests import LoggedRequest, LogReader, ServerLog, read_server_log
from tests.logs.hostile_log import hostile_log

DATA = Path(__file__).parents[1] / "data" / "server_logs"
SAMPLES = Path(__file__).parents[3] / "shared" / "samples"

PROMPT = (
    "prompt eval time =      11.57 ms /     7 tokens (    1.65 ms per token,   "
    "605.01 tokens per second)"
)
EVAL = (
    "       eval time =      71.36 ms /    40 tokens (    1.83 ms per token,   "
    "546.55 tokens per second)"
)
TOTAL = "      total time =      82.93 ms /    47 tokens"
DRAFT = "draft acceptance = 0.76316 (   29 accepted /    38 generated), mean len =  3.90"
BLOCK = (PROMPT, EVAL, TOTAL, DRAFT)
SLOT = "slot print_timing: id  0 | task 0 | "
TIMINGS = {
    "prompt_n": 7,
    "prompt_ms": 11.571,
    "predicted_n": 40,
    "predicted_ms": 71.36,
    "predicted_per_second": 39 / 71.36 * 1000,
    "draft_n": 38,
    "draft_n_accepted": 29,
}


def read(text: str | bytes) -> ServerLog:
    return read_server_log(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def figures(request: LoggedRequest) -> tuple[object, ...]:
    r = request
    return r.prompt_n, r.predicted_n, r.predicted_ms, r.drafted, r.accepted


ONE = (7, 40, 71.36, 38, 29)


def jsonl(line: str) -> str:
    return json.dumps({"type": "log", "time": 1, "level": "info", "msg": line + "\n"})


def journal(line: str) -> str:
    return json.dumps({"_PID": "812", "SYSLOG_IDENTIFIER": "llama-server", "MESSAGE": line})


def journal_bytes(line: str) -> str:
    return json.dumps({"_PID": "812", "MESSAGE": list(line.encode())}, separators=(",", ":"))


@pytest.mark.parametrize(
    "wrap",
    [
        str,
        lambda line: SLOT + line,
        lambda line: "0.00.285.676 I " + SLOT + line,
        lambda line: "\x1b[34m0.00.285.676\x1b[0m \x1b[32mI \x1b[0m" + SLOT + line,
        lambda line: "Oct 22 17:06:59 box llama-server[812]: " + SLOT + line,
        lambda line: "2025-10-22T17:06:59+0200 box llama-server[812]: " + line,
        lambda line: "1761145619.123456 box llama-server[812]: " + line,
        lambda line: "Wed 2025-10-22 17:06:59 CEST box llama.service[812]: " + line,
        lambda line: "2025-10-22T17:06:59.123456789Z " + line,
        lambda line: "llama-1  | " + SLOT + line,
        lambda line: "INFO [           print_timings] " + line + ' | tid="1" timestamp=2',
        lambda line: f"`{line}`",
        lambda line: line + "\r",
        jsonl,
        lambda line: jsonl(SLOT + line),
        journal,
        journal_bytes,
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025"}),
        lambda line: json.dumps({"level": "INFO", "msg": line, "id_slot": 0, "id_task": 3}),
        lambda line: journal(jsonl(line)),
    ],
)
def test_a_block_in_every_wrapping(wrap: object) -> None:
    assert callable(wrap)
    log = read("\n".join(wrap(line) for line in BLOCK))
    assert [figures(r) for r in log.requests] == [ONE]
    assert log.refused == 0


def test_the_forms_of_ik() -> None:
    generation = EVAL.replace("       eval", "generation eval").replace("tokens (", "runs   (")
    ratio = "draft acceptance rate = 0.76316 (   29 accepted /    38 generated)"
    # ik prints the block in one call: only its first line has the slot, the ratio has none.
    told = "\n".join([SLOT, PROMPT, EVAL, TOTAL, "", ratio])
    assert [figures(r) for r in read(told).requests] == [ONE]
    assert [figures(r) for r in read(f"{PROMPT}\n{generation}\n{ratio}\n").requests] == [ONE]
    first, second = SLOT + PROMPT, SLOT + EVAL
    assert [figures(r) for r in read(f"{first}\n{second}\n{ratio}").requests] == [ONE]


@pytest.mark.parametrize(
    "wrap",
    [
        json.dumps,
        lambda a: json.dumps([a]),
        lambda a: json.dumps(a, indent=2),
        lambda a: "data: " + json.dumps(a),
        lambda a: "srv  log_server_r: response: " + json.dumps(a),
        lambda a: (
            'VERB [ operator()] data stream | tid="1" to_send='
            + json.dumps("data: " + json.dumps(a) + "\n\n")
        ),
        lambda a: (
            'VERB [ log_server_request] request | request="{\\"x\\":1}" response='
            + json.dumps(json.dumps(a))
        ),
        lambda a: json.dumps({"msg": "data stream", "to_send": "data: " + json.dumps(a)}),
        lambda a: journal(
            "VERB [ x] data stream | to_send=" + json.dumps("data: " + json.dumps(a))
        ),
    ],
)
def test_an_answer_in_every_wrapping(wrap: object) -> None:
    assert callable(wrap)
    log = read(wrap({"model": "Ling-1T", "content": "{", "timings": TIMINGS}))
    assert [figures(r) for r in log.requests] == [ONE]
    assert log.requests[0].target == "Ling-1T"


def test_a_request_told_twice_is_one() -> None:
    answer = json.dumps({"id": "chatcmpl-1", "model": "Ling-1T", "timings": TIMINGS})
    without_draft = "\n".join([SLOT + PROMPT, SLOT + EVAL])
    log = read(f"{without_draft}\n{answer}\n{SLOT}{PROMPT}\n")
    assert figures(log.requests[0]) == ONE
    assert log.requests[0].target == "Ling-1T"
    assert [r.line for r in log.requests] == [1, 4]


def test_chunks_of_one_answer_are_one_request() -> None:
    chunks = [
        json.dumps(
            {"id": "a", "timings": {**TIMINGS, "predicted_n": n, "predicted_per_second": None}}
        )
        for n in (2, 20, 40)
    ]
    assert [figures(r) for r in read("\n".join(chunks)).requests] == [ONE]
    partial = json.dumps({"stop": False, "content": "x", "timings": {**TIMINGS, "predicted_n": 40}})
    assert read(partial).requests == ()


def test_slots_side_by_side() -> None:
    other = "slot print_timing: id  1 | task 7 | "
    second = PROMPT.replace("     7 tokens", "     8 tokens").replace("605.01", "691.44")
    ratio = "draft acceptance = 0.50000 (    1 accepted /     2 generated)"
    lines = [SLOT + PROMPT, other + second, other + EVAL, SLOT + EVAL, SLOT + DRAFT, other + ratio]
    assert {figures(r) for r in read("\n".join(lines)).requests} == {ONE, (8, 40, 71.36, 2, 1)}


def test_the_pair_is_named_as_it_changes() -> None:
    loads = "0.00.007.509 I srv    load_model: loading model '/m/{}-00001-of-00005.gguf'\n"
    draft = "common_speculative_init_result: loading draft model '/m/{}.gguf'\n"
    block = "\n".join(SLOT + line for line in BLOCK) + "\n"
    again = block.replace("  71.36", "  71.37")
    log = read(loads.format("T") + draft.format("D1") + block + loads.format("T") + again)
    assert [(r.target, r.draft) for r in log.requests] == [("T", "D1"), ("T", None)]
    meta = (
        "llama_model_loader: loaded meta data with 39 key-value pairs and 68 tensors from "
        "/m/{}.gguf (version GGUF V3 (latest))\n"
    )
    log = read(meta.format("T") + meta.format("T") + meta.format("D2") + block)
    assert [(r.target, r.draft) for r in log.requests] == [("T", "D2")]
    evil = read(loads.format("a\x1b]0;b\x07c") + block).requests[0].target
    assert evil.isprintable()


def test_two_servers_in_one_journal() -> None:
    def of(pid: int, line: str) -> str:
        return f"Oct 22 17:06:59 box llama-server[{pid}]: {line}\n"

    text = of(1, "srv load_model: loading model 'A'") + of(2, "srv load_model: loading model 'B'")
    text += of(2, PROMPT) + of(1, PROMPT.replace("11.57", "11.58").replace("605.01", "604.49"))
    text += of(1, EVAL) + of(2, EVAL) + of(2, DRAFT)
    told = {(r.target, r.drafted) for r in read(text).requests}
    assert told == {("A", None), ("B", 38)}


@pytest.mark.parametrize(
    "line",
    [
        EVAL.replace("546.55", "999.99"),
        DRAFT.replace("0.76316", "0.86316"),
        DRAFT.replace("29", "39"),
        json.dumps({"timings": {**TIMINGS, "draft_n_accepted": 39}}),
        json.dumps({"timings": {**TIMINGS, "predicted_n": 4000}}),
        json.dumps({"timings": {**TIMINGS, "predicted_ms": -1}}),
        json.dumps({"timings": {**TIMINGS, "predicted_ms": float("nan")}}),
        json.dumps({"timings": TIMINGS})[:-1],
    ],
)
def test_figures_that_contradict_themselves_are_left_out(line: str) -> None:
    log = read(line)
    assert log.requests == ()
    assert log.refused == 1
    assert log.suspects[0].line == 1


@pytest.mark.parametrize(
    "line",
    [
        "llama_print_timings: " + PROMPT.strip(),
        f'{{"prompt": "{DRAFT}"}}',
        f'srv request: {{"prompt": "{EVAL}", "x": "\\"timings\\""}}',
        "user: " + DRAFT,
        json.dumps({"timings": {**TIMINGS, "predicted_n": True}}),
        DRAFT[:-22],
    ],
)
def test_what_stands_elsewhere_is_no_figure(line: str) -> None:
    assert read(line).requests == ()


def test_rates_of_nothing() -> None:
    nothing = "eval time = 0.00 ms / 1 tokens ( 0.00 ms per token, inf tokens per second)"
    r = read(nothing).requests[0]
    assert (r.predicted_n, r.predicted_ms, r.logged_tokens_per_s) == (1, 0.0, None)


def test_recorded_logs_of_both_engines() -> None:
    text = read((DATA / "llama-cpp.log").read_bytes())
    assert {(r.target, r.draft) for r in text.requests} == {("target-q8_0", "draft-f16")}
    assert [(r.drafted, r.accepted) for r in text.requests] == [
        (38, 29),
        (35, 30),
        (54, 24),
        (37, 19),
    ]
    lines = read((DATA / "llama-cpp.jsonl").read_bytes())
    assert [(r.drafted, r.accepted) for r in lines.requests] == [
        (38, 29),
        (35, 30),
        (54, 24),
        (37, 19),
    ]
    drafter = lines.drafting[0]
    assert (drafter.method, drafter.drafted, drafter.accepted) == ("draft-simple", 164, 102)
    assert drafter.draft_ms is not None
    verbose = read((DATA / "llama-cpp-verbose.log").read_bytes())
    assert [(r.predicted_n, r.drafted, r.accepted) for r in verbose.requests] == [(30, 37, 19)]


def test_a_recorded_log_of_ik_and_its_verbose_half() -> None:
    text, verbose = ((DATA / name).read_bytes() for name in ("ik.log", "ik-verbose.log"))
    counts = [(38, 29), (35, 30), (54, 24), (36, 19)]
    assert [(r.drafted, r.accepted) for r in read(text).requests] == counts
    assert [(r.drafted, r.accepted) for r in read(verbose).requests] == counts[:3]
    both = read(text + verbose).requests
    assert [(r.drafted, r.accepted) for r in both] == counts
    assert {(r.target, r.draft) for r in both} == {("target-q8_0", "draft-f16")}
    depths = [(d.depth, d.drafted, d.accepted) for d in both[0].by_depth]
    assert depths == [(1, 10, 9), (2, 10, 8), (3, 9, 6), (4, 9, 6)]
    assert sum(d.drafted for d in both[0].by_depth) == 38
    assert read(text).drafting[0].accepted == 102


def test_the_logs_of_the_field() -> None:
    check_journal(read((DATA / "ik-verbose-2025.log").read_bytes()))
    check_timings(read((DATA / "ik-2025.log").read_bytes()))


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"SKIPPED LOUDLY: {SAMPLES} is not here")
def test_the_samples_themselves() -> None:
    check_journal(read((SAMPLES / "server-journal-ik.log").read_bytes()))
    check_timings(read((SAMPLES / "server-timings-ik-old.log").read_bytes()))
    check_sweeps(read((SAMPLES / "sweep-bench-ik.txt").read_bytes()))
    told = {"server-journal-ik.log", "server-timings-ik-old.log"}
    for path in SAMPLES.iterdir():
        if path.name not in told:
            assert read(path.read_bytes()).requests == (), path.name


def check_journal(log: ServerLog) -> None:
    told = [(r.target, r.drafted, r.accepted, r.logged_tokens_per_s) for r in log.requests]
    qwen, ling = "Qwen3-Coder-480B-A35B-Instruct-5.1546bpw", "Ling-1T-smol-IQ4_KSS-32k-ctx"
    assert [t[:3] for t in told] == [(qwen, 1492, 1340), (qwen, 16706, 16375), (ling, 9825, 7384)]
    assert [f"{t[3]:.2f}" for t in told] == ["10.74", "12.77", "8.24"]


def check_timings(log: ServerLog) -> None:
    rates = [r.logged_tokens_per_s for r in log.requests]
    assert rates == [14.30, 11.30, 16.32, 12.96, 2.73, 2.60]
    pair = ("Deepseek-R1-0528", "DeepSeek R1 0528 DRAFT 0.6B")
    assert {(r.target, r.draft) for r in log.requests} == {pair}


def check_sweeps(log: ServerLog) -> None:
    at_20k = [row.decode_tokens_per_s for rows in log.sweeps for row in rows if row.n_kv == 20480]
    # The thread's table: 85, 81, 83 and 81 t/s, and 103 with flags that were not deployed.
    assert at_20k == [84.99, 81.44, 81.86, 81.86, 102.61, 82.80, 80.70]
    assert {len(rows) for rows in log.sweeps} == {8}


def test_tables_of_sweep_bench() -> None:
    head = "|    PP |     TG |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |\n"
    row = "|  4096 |   1024 |  20480 |    2.139 |  1915.29 |   12.048 |    84.99 |\n"
    rule = "|-------|--------|--------|----------|----------|----------|----------|\n"
    log = read(head + rule + row + head + rule + row)
    rows = [row for rows in log.sweeps for row in rows]
    assert len(log.sweeps) == len(rows) == 2
    for r in rows:
        assert (r.prompt_tokens, r.tokens, r.n_kv) == (4096, 1024, 20480)
        assert r.decode_tokens_per_s == 84.99
    assert log.requests == ()
    assert read(row.replace("84.99", "94.99")).refused == 1
    assert read(row.replace("84.99 |", "84.99 | 1 |")).sweeps == ()


REAL = [line for line in (DATA / "llama-cpp.log").read_bytes().split(b"\n") if line]
PLAIN = [figures(r) for r in read(b"\n".join(REAL)).requests]
NOISE = st.one_of(
    st.binary(max_size=80).filter(lambda line: b"\n" not in line),
    st.text(max_size=80).map(lambda t: t.encode("utf-8", "replace").replace(b"\n", b"")),
    st.sampled_from(REAL).flatmap(
        lambda line: st.integers(0, max(0, len(line) - 30)).map(lambda cut: line[:cut])
    ),
    st.sampled_from([b"{", b"[" * 50_000, b'{"timings":' * 9, b"data: ", b'{"msg":"' + b"x" * 999]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(REAL)), NOISE), max_size=30))
def test_noise_between_the_lines_changes_nothing(noise: list[tuple[int, bytes]]) -> None:
    lines = list(REAL)
    for at, line in sorted(noise, key=lambda pair: -pair[0]):
        lines.insert(at, line)
    data = b"\n".join([b"-", *lines])
    log = read(data)
    assert [figures(r) for r in log.requests] == PLAIN
    assert log.lines == len(lines) + (not data.endswith(b"\n"))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_read(data: bytes) -> None:
    log = read(data)
    assert log.requests == ()
    if b"\0" not in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.removeprefix(codecs.BOM_UTF8)
        assert log.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=30))
def test_blocks_of_any_size_say_the_same(sizes: list[int]) -> None:
    data = (DATA / "llama-cpp.jsonl").read_bytes()
    reader, at, turn = LogReader(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert reader.result() == read(data)


def test_a_log_longer_than_a_block_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_BLOCK_BYTES", 1000)
    assert [figures(r) for r in read(b"\n".join(REAL)).requests] == PLAIN


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(TIMINGS)), JSON), JSON, JSON)
def test_any_timings_give_a_sound_request_or_none(
    changed: dict[str, object], name: object, depth: object
) -> None:
    timings = {**TIMINGS, **changed, "draft_by_depth": depth}
    log = read(json.dumps({"model": name, "id": name, "timings": timings}))
    assert len(log.requests) + log.refused <= 1
    for r in log.requests:
        assert r.predicted_ms is not None
        assert r.predicted_ms >= 0
        assert (r.drafted is None) == (r.accepted is None)
        assert (r.accepted or 0) <= (r.drafted or 0)


def test_lines_too_long_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_LINE_BYTES", 1000)
    long = b'{"x":"' + b"y" * 5000 + b'","timings":{"predicted_n":1,"predicted_ms":1}}'
    log = read(long + b"\n" + b"\n".join(REAL) + b"\n" + long)
    assert log.too_long == 2
    assert [figures(r) for r in log.requests] == PLAIN


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_REQUESTS", 3)
    with pytest.raises(InputError, match="more than 3 requests"):
        read((DATA / "llama-cpp.log").read_bytes())


def test_ten_megabytes_of_hostile_lines_change_nothing() -> None:
    noise = hostile_log(10 << 20).split(b"\n")
    log = read(b"\n".join(hostile_lines_between(noise)))
    assert [figures(r) for r in log.requests] == PLAIN
    assert read(b"\n".join(noise)).requests == ()


def hostile_lines_between(noise: list[bytes]) -> list[bytes]:
    share = len(noise) // len(REAL)
    return [
        line for i, real in enumerate(REAL) for line in (real, *noise[i * share : (i + 1) * share])
    ]
