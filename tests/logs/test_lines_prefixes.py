"""What collectors put in front of the engine's words, and the wordings of all builds since 2024."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.logs.log_figures import report
from cook.logs.requests import LoggedRequest, ServerLog, read_server_log

DATA = Path(__file__).parents[1] / "data" / "server_logs"
SLOT = "slot print_timing: id  0 | task 689 | "
PROMPT = (
    "prompt eval time =     512.40 ms /    61 tokens (    8.40 ms per token,   119.05 tokens "
    "per second)"
)
EVAL = (
    "       eval time =    2296.72 ms /   256 tokens (    8.97 ms per token,   111.03 tokens "
    "per second)"
)
DRAFT = "draft acceptance = 0.64479 (  167 accepted /   259 generated)"
BLOCK = (PROMPT, EVAL, DRAFT)
ONE = (61, 512.4, 256, 2296.72, 259, 167)


def read(text: str | bytes) -> ServerLog:
    return read_server_log(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def figures(r: LoggedRequest) -> tuple[object, ...]:
    return r.prompt_n, r.prompt_ms, r.predicted_n, r.predicted_ms, r.drafted, r.accepted


def test_a_routers_children() -> None:
    """The case of opencode issue 38801, as a block and in a journal, and the bundled engine's own
    router, recorded."""
    for name in ("router-block.log", "router-journal.log"):
        counts = [(r.drafted, r.accepted) for r in read((DATA / name).read_bytes()).requests]
        assert counts == [(259, 167), (171, 120), (160, 41)]
    recorded = read((DATA / "router-recorded.log").read_bytes()).requests
    assert [(r.prompt_n, r.predicted_n) for r in recorded] == [(87, 24), (199, 24)]
    assert {r.target for r in recorded} == {"target-q8_0"}


WORDINGS = {
    # llama.cpp, examples/server/server.cpp to 2024-02: LOG_TEE with the function's name.
    "llama.cpp 2023-12 to 2024-02": (
        "print_timings: prompt eval time =     512.40 ms /    61 tokens (    8.40 ms per token, "
        "  119.05 tokens per second)",
        "print_timings:        eval time =    2296.72 ms /   256 runs   (    8.97 ms per token, "
        "  111.46 tokens per second)",
    ),
    # 2024-02 to 2024-09, and ik to 2025-12: LOG_INFO with a function and key=value pairs
    # (llama.cpp issue 9013).
    "llama.cpp 2024, ik to 2025-12": (
        "INFO [           print_timings] prompt eval time     =     512.40 ms /    61 tokens ("
        '    8.40 ms per token,   119.05 tokens per second) | tid="139964472983552" '
        "timestamp=1723569622 id_slot=0 id_task=0 t_prompt_processing=512.4",
        "INFO [           print_timings] generation eval time =    2296.72 ms /   256 runs   ("
        '    8.97 ms per token,   111.46 tokens per second) | tid="139964472983552" '
        "timestamp=1723569622 id_slot=0 id_task=0 t_token_generation=2296.72",
    ),
    # llama.cpp from 2024-09 (llama-swap issue 35), and ik from 2026-01: one call, three lines.
    "llama.cpp 2024-09 on, ik 2026 on": (
        SLOT,
        PROMPT,
        EVAL,
        "draft acceptance rate = 0.64479 (  167 accepted /   259 generated)",
    ),
    "llama.cpp 2026, a prefix a line": (SLOT + PROMPT, SLOT + EVAL, SLOT + DRAFT),
    # llama.cpp pull request 24536, as its branch printed it.
    "llama.cpp 2026-06": (
        SLOT + PROMPT,
        SLOT + EVAL,
        SLOT + DRAFT + ", mean acceptance length =  2.92, acceptance rate per position = (0.805)",
    ),
    "llama.cpp 2026-07 on": (SLOT + PROMPT, SLOT + EVAL, SLOT + DRAFT + ", mean len =  2.92"),
    "saved timings alone": (
        json.dumps(
            {
                "prompt_n": 61,
                "prompt_ms": 512.4,
                "predicted_n": 256,
                "predicted_ms": 2296.72,
                "draft_n": 259,
                "draft_n_accepted": 167,
            }
        ),
    ),
}


@pytest.mark.parametrize("builds", WORDINGS)
def test_every_wording(builds: str) -> None:
    log = read("\n".join(WORDINGS[builds]))
    drafts = any("acce" in line for line in WORDINGS[builds])
    assert [figures(r) for r in log.requests] == [ONE if drafts else (*ONE[:4], None, None)]
    assert (log.refused, log.unread) == (0, 0)


def _json(key: str) -> Callable[[str], str]:
    return lambda line: json.dumps({"ts": "2026-07-28T20:08:36Z", key: line, "pod": "a-1"})


PREFIXES: dict[str, Callable[[str], str]] = {
    "router child (llama.vim issue 128)": "[41907] 13.06.287.074 I {}".format,
    "docker compose": "llama-1  | {}".format,
    "compose, a service without a number": "server  | {}".format,
    "docker swarm": "ai_llama.1.x8k2v7@node-3    | {}".format,
    "docker logs -t": "2026-07-28T20:08:36.000100123Z {}".format,
    "cri-o file": "2026-07-28T20:08:36.000100123+02:00 stderr F {}".format,
    "kubectl logs --prefix": "[pod/llama-6d8f9c-x7kq2/server] {}".format,
    "kubectl --prefix --timestamps": "[pod/llama-0/server] 2026-07-28T20:08:36.1Z {}".format,
    "stern": "llama-6d8f9c-x7kq2 server {}".format,
    "syslog": "Jul 28 20:08:36 box llama-server[4242]: {}".format,
    "syslog 5424": "<30>1 2026-07-28T20:08:36.000Z box llama 4242 - - {}".format,
    "journald and a child": "Jul 28 20:08:36 box llama[4242]: [42751] 107.50.424.958 I {}".format,
    "ollama": "Dec 03 14:58:50 osm-server ollama[937]: {}".format,
    "llama-swap": "[llama-swap] 192.168.16.7 [2025-01-30 18:35:58] {}".format,
    "grep -n": "1234:{}".format,
    "grep -n of several files": "logs/server.log:1234:{}".format,
    "grep -C": "logs/server.log-1234-{}".format,
    "ts": "Jul 28 20:08:36 {}".format,
    "ts -i": "00:00:04 {}".format,
    "pm2": "0|llama    | {}".format,
    "supervisord": "2026-07-28 20:08:36,123 DEBG 'llama' stderr output: {}".format,
    "loki's logcli": '2026-07-28T20:08:36+02:00 {{app="llama", pod="a-1"}} {}'.format,
    "logfmt": 'time="2026-07-28T20:08:36Z" level=info msg="{}"'.format,
    "a column of CSV": '2026-07-28 20:08:36,"{}"'.format,
    "a forum's quote": "> {}".format,
    "vector": _json("message"),
    "loki's jsonl": _json("line"),
    "google cloud": _json("textPayload"),
    "nested": lambda line: json.dumps({"jsonPayload": {"message": line}}),
}


@pytest.mark.parametrize("slot", ["", SLOT])
@pytest.mark.parametrize("collector", PREFIXES)
def test_every_prefix(collector: str, slot: str) -> None:
    log = read("\n".join(PREFIXES[collector](slot + line) for line in BLOCK))
    assert [figures(r) for r in log.requests] == [ONE]
    assert (log.refused, log.unread) == (0, 0)


SERVERS = ("[{}] ", "llama-{}  | ", "[pod/llama-{}/server] ", "box llama-server[{}]: ")


@pytest.mark.parametrize("server", SERVERS)
def test_two_servers_at_once_are_kept_apart(server: str) -> None:
    half = "draft acceptance = 0.50000 (    1 accepted /     2 generated)"
    other = [PROMPT.replace("512.40", "512.41"), EVAL.replace("2296.72", "2296.73"), half]
    lines = [line for pair in zip(BLOCK, other, strict=True) for line in pair]
    text = "\n".join(server.format(4000 + n % 2) + line for n, line in enumerate(lines))
    assert [r.drafted for r in read(text).requests] == [259, 2]


def mutated(dice: random.Random) -> Callable[[int, str], str]:
    """A prefix as a chain of collectors might write it, each line with a time of its own."""
    number = f"{dice.choice(('', 'server.log:', '/var/log/l.log:'))}"
    numbered = dice.random() < 0.3
    zone = dice.choice(("", "Z", "+02:00", "-0400", " UTC"))
    day = dice.choice(("2026-07-28T", "2026-07-28 ", "Jul 28 ", "", "28/07/26 "))
    bracket = dice.choice(("{} ", "[{}] ", "({}) ", "<{}> "))
    host = dice.choice(("", "box ", "node-3 ", "my.host.lan ", "10.0.0.7 "))
    service = dice.choice(("", "llama[{}]: ", "llama-server.service[{}]: ", "app_{} | ", "#{} "))
    child = dice.choice(("", "[{}] ", "child {}: ", "port={} "))
    level = dice.choice(("", "I ", "INFO ", "info: ", "stderr F "))
    engine = dice.random() < 0.5
    timed = bool(day) or dice.random() < 0.5
    process, port = dice.randrange(2, 99_999), dice.randrange(1024, 65_535)

    def prefix(n: int, line: str) -> str:
        time = f"{day}20:{n % 60:02}:{7 * n % 60:02}{dice.choice(('', f'.{n:06}'))}{zone}"
        own = f"4.40.{n % 1000:03}.649 I " if engine else ""
        begin = f"{number}{100 + n}:" if numbered else ""
        shown = bracket.format(time) if timed else ""
        return (
            begin
            + shown
            + host
            + service.format(process)
            + child.format(port)
            + level
            + own
            + (SLOT + line)
        )

    return prefix


def test_two_hundred_mutated_prefixes() -> None:
    dice = random.Random(39)
    for _ in range(200):
        prefix = mutated(dice)
        lines = [prefix(n, line) for n, line in enumerate(BLOCK)]
        assert [figures(r) for r in read("\n".join(lines)).requests] == [ONE], lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_the_encodings_of_windows(encoding: str) -> None:
    text = "\r\n".join(["PS C:\\> llama-server", *(SLOT + line for line in BLOCK)])
    log = read(text.encode(encoding))
    assert [figures(r) for r in log.requests] == [ONE]
    assert log.lines == 4


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
    assert (log.first_unread.line, log.first_unread.why) == (4, line.strip())
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
    ],
)
def test_what_another_program_or_a_user_wrote_is_neither_read_nor_counted(line: str) -> None:
    log = read(line)
    assert (log.requests, log.unread) == ((), 0)
