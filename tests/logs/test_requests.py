"""Server logs: every form that the engines write and collectors wrap, each request counted once,
whatever stands between."""

from __future__ import annotations

import codecs
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.logs import requests
from cook.logs.log_figures import report
from cook.logs.requests import LoggedRequest, LogReader, ServerLog, read_server_log

DATA = Path(__file__).parents[1] / "data" / "server_logs"
SAMPLES = Path(__file__).parents[3] / "shared" / "samples"


def timing(what: str, ms: float, n: int, each: float, rate: float) -> str:
    return (
        f"{what} time = {ms:10.2f} ms / {n:5d} tokens ({each:8.2f} ms per token, "
        f"{rate:8.2f} tokens per second)"
    )


PROMPT = timing("prompt eval", 11.57, 7, 1.65, 605.01)
EVAL = timing("       eval", 71.36, 40, 1.83, 546.55)
TOTAL = "      total time =      82.93 ms /    47 tokens"
DRAFT = "draft acceptance = 0.76316 (   29 accepted /    38 generated)"
RATIO = DRAFT.replace("acceptance =", "acceptance rate =")
BLOCK = (PROMPT, EVAL, TOTAL, DRAFT)
STATISTICS = (
    "statistics draft: #calls(b,g,a) = 1 10 10, #gen drafts = 10, #acc drafts = 9, "
    "#gen tokens = 38, #acc tokens = 29"
)
SLOT = "slot print_timing: id  0 | task 0 | "
RUNS = EVAL.replace("tokens (", "runs   (")
TIMINGS = {
    "prompt_n": 7,
    "prompt_ms": 11.571,
    "predicted_n": 40,
    "predicted_ms": 71.36,
    "predicted_per_second": 39 / 71.36 * 1000,
    "draft_n": 38,
    "draft_n_accepted": 29,
}
ONE = (7, 40, 71.36, 38, 29)


def read(text: str | bytes) -> ServerLog:
    return read_server_log(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def recorded(name: str) -> ServerLog:
    return read((DATA / name).read_bytes())


def figures(r: LoggedRequest) -> tuple[object, ...]:
    return r.prompt_n, r.predicted_n, r.predicted_ms, r.drafted, r.accepted


def counts(log: ServerLog) -> list[tuple[int | None, int | None]]:
    return [(r.drafted, r.accepted) for r in log.requests]


def holds_one(log: ServerLog) -> bool:
    """Whether the request of the block is all that was found, and nothing was passed over."""
    return [figures(r) for r in log.requests] == [ONE] and not (log.refused or log.unread)


def in_json(key: str, **others: object) -> Callable[[str], str]:
    return lambda line: json.dumps({"time": "2026-07-28T20:08:36Z", key: line, **others})


jsonl = in_json("msg", type="log", level="info")
journal = in_json("MESSAGE", _PID="812", SYSLOG_IDENTIFIER="llama-server")
Wrap = Callable[[str], str]
WRAPPINGS: dict[str, Wrap] = {
    "bare": str,
    "llama-server": ("0.00.285.676 I " + SLOT + "{}").format,
    "coloured": ("\x1b[34m0.00.285.676\x1b[0m \x1b[32mI \x1b[0m" + SLOT + "{}").format,
    "router child (llama.vim issue 128)": "[41907] 13.06.287.074 I {}".format,
    "ik's log": 'INFO [           print_timings] {} | tid="1" timestamp=2'.format,
    "syslog": "Oct 22 17:06:59 box llama-server[812]: {}".format,
    "syslog 5424": "<30>1 2026-07-28T20:08:36.000Z box llama 4242 - - {}".format,
    "journal, ISO": "2025-10-22T17:06:59+0200 box llama-server[812]: {}".format,
    "journal, seconds": "1761145619.123456 box llama-server[812]: {}".format,
    "journal, weekday": "Wed 2025-10-22 17:06:59 CEST box llama.service[812]: {}".format,
    "journald and a child": "Jul 28 20:08:36 box llama[4242]: [42751] 107.50.424.958 I {}".format,
    "docker compose": "llama-1  | {}".format,
    "compose, a service without a number": "server  | {}".format,
    "docker logs -t": "2025-10-22T17:06:59.123456789Z {}".format,
    "cri-o file": "2026-07-28T20:08:36.000100123+02:00 stderr F {}".format,
    "kubectl logs --prefix": "[pod/llama-6d8f9c-x7kq2/server] {}".format,
    "stern": "llama-6d8f9c-x7kq2 server {}".format,
    "grep -n": "1234:{}".format,
    "grep -C": "logs/server.log-1234-{}".format,
    "ts -i": "00:00:04 {}".format,
    "loki's logcli": '2026-07-28T20:08:36+02:00 {{app="llama", pod="a-1"}} {}'.format,
    "logfmt": 'time="2026-07-28T20:08:36Z" level=info msg="{}"'.format,
    "a column of CSV": '2026-07-28 20:08:36,"{}"'.format,
    "a forum's quote": "> {}".format,
    "a forum's code": "`{}`".format,
    "Windows": "{}\r".format,
    "--log-jsonl": lambda line: jsonl(line + "\n"),
    "journal's JSON": journal,
    "journal's bytes": lambda line: json.dumps(
        {"_PID": "812", "MESSAGE": list(line.encode())}, separators=(",", ":")
    ),
    "--log-jsonl in a journal": lambda line: journal(jsonl(line)),
    "loki's JSON": in_json("line"),
    "docker's JSON": in_json("log", stream="stderr"),
    "ik's JSON": in_json("msg", level="INFO", id_slot=0, id_task=3),
    "google cloud": in_json("textPayload"),
    "nested": lambda line: json.dumps({"jsonPayload": {"message": line}}),
}


@pytest.mark.parametrize("slot", ["", SLOT])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_block_in_every_wrapping(wrapping: str, slot: str) -> None:
    assert holds_one(read("\n".join(WRAPPINGS[wrapping](slot + line) for line in BLOCK)))


NO_DRAFT = {
    # llama.cpp, examples/server/server.cpp to 2024-02: LOG_TEE with the function's name.
    "llama.cpp 2023-12 to 2024-02": (f"print_timings: {PROMPT}", f"print_timings: {RUNS}"),
    # 2024-02 to 2024-09, and ik to 2025-12: LOG_INFO with a function and key=value pairs
    # (llama.cpp issue 9013).
    "llama.cpp 2024, ik to 2025-12": (
        f"INFO [           print_timings] {PROMPT.replace('time =', 'time     =')} | "
        'tid="139964472983552" timestamp=1723569622 id_slot=0 id_task=0 t_prompt_processing=11.57',
        f"INFO [           print_timings] generation {RUNS.strip()} | "
        'tid="139964472983552" timestamp=1723569622 id_slot=0 id_task=0 t_token_generation=71.36',
    ),
}
# llama.cpp pull request 24536, as its branch printed it.
BRANCH = ", mean acceptance length =  2.92, acceptance rate per position = (0.805)"
DRAFTED = {
    # llama.cpp from 2024-09 (llama-swap issue 35), and ik from 2026-01: one call, whose first line
    # alone has the slot.
    "llama.cpp 2024-09 on, ik 2026 on": (SLOT, PROMPT, EVAL, TOTAL, "", RATIO),
    "ik, the ratio without its slot": (SLOT + PROMPT, SLOT + EVAL, RATIO),
    "llama.cpp 2026-06": (SLOT + PROMPT, SLOT + EVAL, SLOT + DRAFT + BRANCH),
    "llama.cpp 2026-07 on": (SLOT + PROMPT, SLOT + EVAL, SLOT + DRAFT + ", mean len =  3.90"),
    "saved timings alone": (json.dumps(TIMINGS),),
}


@pytest.mark.parametrize("builds", [*NO_DRAFT, *DRAFTED])
def test_every_wording(builds: str) -> None:
    log = read("\n".join(DRAFTED.get(builds) or NO_DRAFT[builds]))
    expected = ONE if builds in DRAFTED else (*ONE[:3], None, None)
    assert [figures(r) for r in log.requests] == [expected]
    assert (log.refused, log.unread) == (0, 0)


def mutated(dice: random.Random) -> Callable[[int, str], str]:
    """A prefix as a chain of collectors might write it, each line with a time of its own."""
    number = dice.choice(("", "server.log:", "/var/log/l.log:")) if dice.random() < 0.3 else None
    zone = dice.choice(("", "Z", "+02:00", "-0400", " UTC"))
    day = dice.choice(("2026-07-28T", "2026-07-28 ", "Jul 28 ", "", "28/07/26 "))
    bracket = dice.choice(("{} ", "[{}] ", "({}) ", "<{}> "))
    if not day and dice.random() < 0.5:
        bracket = ""
    host = dice.choice(("", "box ", "node-3 ", "my.host.lan ", "10.0.0.7 "))
    service = dice.choice(("", "llama[{}]: ", "llama-server.service[{}]: ", "app_{} | ", "#{} "))
    child = dice.choice(("", "[{}] ", "child {}: ", "port={} "))
    level = dice.choice(("", "I ", "INFO ", "info: ", "stderr F "))
    engine = dice.random() < 0.5
    own = service.format(dice.randrange(2, 99_999)) + child.format(dice.randrange(1024, 65_535))

    def wrap(n: int, line: str) -> str:
        time = f"{day}20:{n % 60:02}:{7 * n % 60:02}{dice.choice(('', f'.{n:06}'))}{zone}"
        begin = f"{number}{100 + n}:" if number is not None else ""
        mark = f"4.40.{n % 1000:03}.649 I " if engine else ""
        return begin + bracket.format(time) + host + own + level + mark + SLOT + line

    return wrap


def test_two_hundred_mutated_prefixes() -> None:
    dice = random.Random(39)
    for _ in range(200):
        wrap = mutated(dice)
        lines = [wrap(n, line) for n, line in enumerate(BLOCK)]
        assert holds_one(read("\n".join(lines))), lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_the_encodings_of_windows(encoding: str) -> None:
    log = read("\r\n".join(["PS C:\\> llama-server", *BLOCK]).encode(encoding))
    assert holds_one(log)
    assert log.lines == 5


def sent(answer: object) -> str:
    return json.dumps("data: " + json.dumps(answer) + "\n\n")


@pytest.mark.parametrize(
    "wrap",
    [
        json.dumps,
        lambda a: json.dumps([a]),
        lambda a: json.dumps(a, indent=2),
        lambda a: f"data: {json.dumps(a)}",
        lambda a: f"srv  log_server_r: response: {json.dumps(a)}",
        lambda a: f'VERB [ operator()] data stream | tid="1" to_send={sent(a)}',
        lambda a: (
            f'VERB [ x] request | request="{{\\"x\\":1}}" response={json.dumps(json.dumps(a))}'
        ),
        lambda a: json.dumps({"msg": "data stream", "to_send": f"data: {json.dumps(a)}"}),
        lambda a: journal(f"VERB [ x] data stream | to_send={sent(a)}"),
    ],
)
def test_an_answer_in_every_wrapping(wrap: Callable[[object], str]) -> None:
    log = read(wrap({"model": "Ling-1T", "content": "{", "timings": TIMINGS}))
    assert holds_one(log)
    assert log.requests[0].target == "Ling-1T"


def test_a_request_logged_twice_is_one() -> None:
    answer = json.dumps({"id": "chatcmpl-1", "model": "Ling-1T", "timings": TIMINGS})
    log = read(f"{SLOT}{PROMPT}\n{SLOT}{EVAL}\n{answer}\n{SLOT}{PROMPT}\n")
    assert figures(log.requests[0]) == ONE
    assert log.requests[0].target == "Ling-1T"
    assert [r.line for r in log.requests] == [1, 4]


def timings(chunk: dict[str, object] | None = None, **changes: object) -> str:
    return json.dumps({**(chunk or {}), "timings": {**TIMINGS, **changes}})


def test_chunks_of_one_answer_are_one_request() -> None:
    chunks = (timings({"id": "a"}, predicted_n=n, predicted_per_second=None) for n in (2, 20, 40))
    assert holds_one(read("\n".join(chunks)))
    assert read(timings({"stop": False, "content": "x"})).requests == ()


HALF = "draft acceptance = 0.50000 (    1 accepted /     2 generated)"
SERVERS = ("[{}] ", "llama-{}  | ", "[pod/llama-{}/server] ", "box llama-server[{}]: ")


@pytest.mark.parametrize("wrap", [*SERVERS, "slot print_timing: id  {0} | task {0} | "])
def test_two_servers_or_slots_at_once_are_kept_apart(wrap: str) -> None:
    other = [PROMPT.replace("11.57", "11.58").replace("605.01", "604.49"), EVAL, TOTAL, HALF]
    lines = [line for pair in zip(BLOCK, other, strict=True) for line in pair]
    text = "\n".join(wrap.format(4000 + n % 2) + line for n, line in enumerate(lines))
    assert counts(read(text)) == [(38, 29), (2, 1)]


def test_two_servers_in_one_journal_have_models_of_their_own() -> None:
    def of(pid: int, line: str) -> str:
        return f"Oct 22 17:06:59 box llama-server[{pid}]: {line}\n"

    text = of(1, "srv load_model: loading model 'A'") + of(2, "srv load_model: loading model 'B'")
    text += of(2, PROMPT) + of(1, PROMPT.replace("11.57", "11.58").replace("605.01", "604.49"))
    text += of(1, EVAL) + of(2, EVAL) + of(2, DRAFT)
    assert {(r.target, r.drafted) for r in read(text).requests} == {("A", None), ("B", 38)}


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
    assert read(loads.format("a\x1b]0;b\x07c") + block).requests[0].target.isprintable()


@pytest.mark.parametrize(
    "line",
    [
        EVAL.replace("546.55", "999.99"),
        DRAFT.replace("0.76316", "0.86316"),
        DRAFT.replace("29", "39").replace("0.76316", "1.02632"),
        STATISTICS.replace("29", "39"),
        timings(draft_n_accepted=39),
        timings(predicted_n=4000),
        timings(predicted_ms=-1),
        timings(predicted_ms=float("nan")),
        timings()[:-1],
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
        "user: " + DRAFT,
        SLOT + DRAFT[:-22],
        SLOT + EVAL.replace("ms /", "ms for"),
        SLOT + "draft acceptance: 64 % of 259",
    ],
)
def test_what_looks_like_the_engines_and_cannot_be_read_is_counted(line: str) -> None:
    log = read("\n".join([*BLOCK, line]))
    assert [figures(r) for r in log.requests] == [ONE]
    assert log.unread == 1
    assert (log.first_unread.line, log.first_unread.why) == (5, line.strip())
    (warning,) = report([("a.log", log)]).warnings
    assert warning.startswith("a.log: 1 line with the engine's words for timings or acceptance not")
    with pytest.raises(InputError, match=r"a\.log:1: 1 line with .* none of which could be read"):
        report([("a.log", read(line))])


@pytest.mark.parametrize(
    "line",
    [
        "llama_perf_context_print: " + PROMPT,
        "0.01.123.456 I common_perf_print: " + PROMPT,
        f'{{"prompt": "my log says {DRAFT}"}}',
        f'srv log_server_r: request: {{"prompt": "my log says\\n{EVAL}"}}',
        f'srv request: {{"prompt": "{EVAL}", "x": "\\"timings\\""}}',
        f'[1] he wrote: "my log says {STATISTICS}"',
    ],
)
def test_what_another_program_or_a_user_wrote_is_neither_read_nor_counted(line: str) -> None:
    log = read(line)
    assert (log.requests, log.drafting, log.unread) == ((), (), 0)


def test_what_only_begins_like_a_document_is_read_by_lines() -> None:
    assert holds_one(read("\n".join(["{", *BLOCK])))


def test_rates_of_nothing() -> None:
    nothing = "eval time = 0.00 ms / 1 tokens ( 0.00 ms per token, inf tokens per second)"
    r = read(nothing).requests[0]
    assert (r.predicted_n, r.predicted_ms, r.logged_tokens_per_s) == (1, 0.0, None)


RECORDED = [(38, 29), (35, 30), (54, 24), (37, 19)]


def test_recorded_logs_of_llama_cpp() -> None:
    text, lines = recorded("llama-cpp.log"), recorded("llama-cpp.jsonl")
    assert counts(text) == counts(lines) == RECORDED
    assert {(r.target, r.draft) for r in text.requests} == {("target-q8_0", "draft-f16")}
    drafter = lines.drafting[0]
    assert (drafter.method, drafter.drafted, drafter.accepted) == ("draft-simple", 164, 102)
    assert drafter.draft_ms is not None
    verbose = recorded("llama-cpp-verbose.log")
    assert [(r.predicted_n, r.drafted, r.accepted) for r in verbose.requests] == [(30, 37, 19)]


def test_a_recorded_log_of_ik_and_its_verbose_half() -> None:
    text, verbose = ((DATA / name).read_bytes() for name in ("ik.log", "ik-verbose.log"))
    expected = [*RECORDED[:3], (36, 19)]
    both = read(text + verbose)
    assert counts(read(text)) == counts(both) == expected
    assert counts(read(verbose)) == expected[:3]
    assert {(r.target, r.draft) for r in both.requests} == {("target-q8_0", "draft-f16")}
    depths = [(d.depth, d.drafted, d.accepted) for d in both.requests[0].by_depth]
    assert depths == [(1, 10, 9), (2, 10, 8), (3, 9, 6), (4, 9, 6)]
    assert read(text).drafting[0].accepted == 102


def test_a_routers_children() -> None:
    """The case of opencode issue 38801, as a block and in a journal, and the bundled engine's own
    router, recorded."""
    for name in ("router-block.log", "router-journal.log"):
        assert counts(recorded(name)) == [(259, 167), (171, 120), (160, 41)]
    own = recorded("router-recorded.log").requests
    assert [(r.prompt_n, r.predicted_n) for r in own] == [(87, 24), (199, 24)]
    assert {r.target for r in own} == {"target-q8_0"}


QWEN, LING = "Qwen3-Coder-480B-A35B-Instruct-5.1546bpw", "Ling-1T-smol-IQ4_KSS-32k-ctx"
FIELD = [DATA / "ik-verbose-2025.log", DATA / "ik-2025.log"]
FIELD += [SAMPLES / name for name in ("server-journal-ik.log", "server-timings-ik-old.log")]


@pytest.mark.parametrize("path", FIELD, ids=lambda path: path.name)
def test_the_logs_of_the_field(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"SKIPPED LOUDLY: {path} is not here")
    found = read(path.read_bytes()).requests
    if path in FIELD[::2]:
        assert [
            (r.target, r.drafted, r.accepted, f"{r.logged_tokens_per_s:.2f}") for r in found
        ] == [
            (QWEN, 1492, 1340, "10.74"),
            (QWEN, 16706, 16375, "12.77"),
            (LING, 9825, 7384, "8.24"),
        ]
    else:
        assert [r.logged_tokens_per_s for r in found] == [14.30, 11.30, 16.32, 12.96, 2.73, 2.60]
        pair = ("Deepseek-R1-0528", "DeepSeek R1 0528 DRAFT 0.6B")
        assert {(r.target, r.draft) for r in found} == {pair}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"SKIPPED LOUDLY: {SAMPLES} is not here")
def test_the_other_samples_of_the_field() -> None:
    for path in {*SAMPLES.iterdir()} - {*FIELD}:
        assert read(path.read_bytes()).requests == (), path.name
    sweeps = read((SAMPLES / "sweep-bench-ik.txt").read_bytes()).sweeps
    at_20k = [row.decode_tokens_per_s for rows in sweeps for row in rows if row.n_kv == 20480]
    # The thread's table: 85, 81, 83 and 81 t/s, and 103 with flags that were not deployed.
    assert at_20k == [84.99, 81.44, 81.86, 81.86, 102.61, 82.80, 80.70]
    assert {len(rows) for rows in sweeps} == {8}


def test_tables_of_sweep_bench() -> None:
    head = "|    PP |     TG |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |\n"
    row = "|  4096 |   1024 |  20480 |    2.139 |  1915.29 |   12.048 |    84.99 |\n"
    rule = "|-------|--------|--------|----------|----------|----------|----------|\n"
    log = read(head + rule + row + head + rule + row)
    assert log.requests == ()
    assert len(log.sweeps) == 2
    for (r,) in log.sweeps:
        assert (r.prompt_tokens, r.tokens, r.n_kv) == (4096, 1024, 20480)
        assert r.decode_tokens_per_s == 84.99
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
    of = {**TIMINGS, **changed, "draft_by_depth": depth}
    log = read(json.dumps({"model": name, "id": name, "timings": of}))
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
        recorded("llama-cpp.log")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("eval time = ", ""),
        ("eval time = 1.00 ms / 1\n", ""),
        (" ", "eval time ="),
        ("\\", '"predicted_ms'),
        ("predicted_ms", ""),
        ("loading model '", ""),
        ("general.name\n", ""),
        ("\x1b[", DRAFT),
        ('{"timings":', '"predicted_n":1,"predicted_ms":'),
        ('{"MESSAGE":[', '"predicted_n":1,"predicted_ms":'),
        ("statistics draft: #calls(b,g,a) = 1 ", ""),
        ("|  4096 ", ""),
    ],
)
def test_megabytes_of_one_hostile_kind_change_nothing(words: str, end: str) -> None:
    """Neither what is read nor, by patterns that look back, how long it takes."""
    noise = (words * ((1 << 20) // len(words)) + end).encode()
    assert [figures(r) for r in read(noise + b"\n" + b"\n".join(REAL)).requests] == PLAIN
    assert read(noise).requests == ()
