"""No name, key, id or word of somebody else acts on the user's terminal, whatever the command.

All commands run with hostile names in one real cook process, its streams two pseudo-terminals or
two pipes. What comes out may hold line ends, tabs of tables, our own colours and the bar's moves.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest

from cook.cli.main import COMMANDS, MEMBERS
from cook.formats.gguf_writer import encode, encode_header, tensor_of
from cook.graph.store import Store
from cook.nightly.history import append, night_of
from cook.record.record import write_record
from tests.attacks.conftest import at_length
from tests.attacks.servers import honest, liar
from tests.report import records
from tests.stored import stored
from tests.terminals import read_all

ROOT = Path(__file__).parents[2]
ACTS = "\x1b]0;title\x07\x1b[2J\x1b[35m\rforged\x9b31m\u202e\u2066\x7f\x00\u200b\u2028"
LINE = "\nerror: forged"
NAME = ACTS.replace("\x00", "") + LINE
"""A file may have this name, and an argument may be it."""
BYTES = NAME + "\udcff"
"""Not UTF-8 either."""

DRIVER = """
import json, sys
from cook.cli.main import main
for number, arguments in enumerate(json.load(open(sys.argv[1]))):
    for stream in (sys.stdout, sys.stderr):
        print(f"@@{number}@@", file=stream, flush=True)
    main(arguments)
"""
SGR = re.compile(rb"\x1b\[[0-9;]*m")
BAR = re.compile(rb"\x1b\[(?:\?25[lh]|2K|1A)|\r(?=\x1b\[(?:2K|1A))")
"""Moves of the bar: the cursor hidden and shown, a line cleared, one up."""


def every_command() -> list[tuple[str, ...]]:
    return [
        (name, *filter(None, [member]))
        for name in COMMANDS
        for member in MEMBERS.get(name, (None,))
    ]


def hostile_recipe(folder: Path) -> Path:
    """A recipe whose keys, names and paths are escapes that YAML itself writes."""
    path = folder / f"r{NAME}.yaml"
    text = json.dumps(ACTS)  # JSON's escapes are YAML's
    path.write_text(
        f"version: 1\nname: {text}\n{text}: 1\nmodel: {{source: {text}}}\nengine: {text}\n"
        f"quants:\n  - {{name: A, type: {text}, rules: [{{{text}: q8_0}}, {{'re:(': {text}}}]}}\n"
        f"  - {{name: {text}, extends: {text}, {text}: {text}}}\n"
    )
    return path


def hostile_warnings(folder: Path) -> Path:
    """A recipe that is sound but for names that lead nowhere."""
    path = folder / "sound.yaml"
    text = json.dumps("re:" + ACTS.replace("\x00", ""))
    path.write_text(
        f"version: 1\nname: sound\nmodel: {{source: {json.dumps('/none/' + ACTS[:20])}}}\n"
        f"quants: [{{name: A, type: Q8_0, rules: [{{{text}: q8_0}}]}}]\n"
    )
    return path


def hostile_gguf(folder: Path) -> Path:
    path = folder / f"m{NAME}.gguf"
    metadata = {key: encode(ACTS) for key in ("general.name", ACTS)}
    metadata["general.architecture"] = encode("llama" + ACTS)
    metadata["tokenizer.ggml.tokens"] = encode([ACTS, "b"])
    tensors = [tensor_of(f"blk.0.{ACTS}.weight", (4, 2), 0, bytes(32))]
    path.write_bytes(encode_header(metadata, tensors) + bytes(64))
    return path


def hostile_prompts(folder: Path) -> Path:
    path = folder / f"p{NAME}.jsonl"
    prompts = enumerate(("x" * 9000, "x", "x"))
    rows = [{"id": f"{i}{ACTS}", "category": ACTS, "prompt": text} for i, text in prompts]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def hostile_record(folder: Path) -> Path:
    path = folder / f"rec{NAME}.json"
    whole = records.record((ACTS, "Q4_K_M"), (4,))
    texts: dict[str, Any] = {"recipe": ACTS + LINE, "recipe_text": ACTS, "target": f"/m/{ACTS}"}
    pick = replace(whole.pick, sentence=ACTS + LINE)
    made = replace(whole, warnings=(ACTS + LINE,), pick=pick, command=("cook", ACTS), **texts)
    write_record(made, path)
    return path


def hostile_log(folder: Path) -> Path:
    path = folder / f"l{NAME}.log"
    text = (ROOT / "tests/data/server_logs/llama-cpp.log").read_text()
    path.write_text(text.replace("target-q8_0", ACTS.replace("\r", "")))
    return path


def hostile_store(home: Path) -> None:
    """An artifact whose label is hostile, and one that is damaged, under a hostile kind."""
    for kind in ("quantize", NAME.replace("/", "")):
        files = {"a": b"a"}
        stored(Store(home / "store"), files, kind=kind, key="k" * 64, label=ACTS + LINE)
    (home / "store" / "quantize" / ("k" * 64) / NAME).write_text("extra")


def invocations(folder: Path, home: Path, url: str, *, modes: bool) -> list[list[str]]:
    """Every command with hostile words; ``modes``: also as JSON, quiet, and as its options."""
    recipe, sound = str(hostile_recipe(folder)), str(hostile_warnings(folder))
    model, from_prompts = str(hostile_gguf(folder)), ["--prompts", str(hostile_prompts(folder))]
    record, log = str(hostile_record(folder)), str(hostile_log(folder))
    hostile_store(home)
    history = home / "history" / "n.jsonl"
    append(history, night_of(records.record((ACTS,), (4,)), cell=ACTS))
    script = folder / f"s{NAME}.sh"
    script.write_text(f'custom="\n{ACTS}=q8_0\nblk\\.0=q4_K\n"\n{ACTS} --custom-q "$custom"\n')
    pipeline = folder / f"n{NAME}.yaml"
    pipeline.write_text(f"version: 1\nname: {json.dumps(ACTS)}\n{json.dumps(ACTS)}: 2\n")
    trace = f"{folder}/{NAME}.trace"
    asked: dict[str, list[list[str]]] = {
        "build": [[recipe], *([sound, "--engine", e] for e in (NAME, f"{NAME}=/none/{NAME}"))],
        "plan": [[recipe], [sound]],
        "score": [
            *(["--target", *words] for words in ([BYTES, BYTES], [model, model, *from_prompts])),
            ["--recipe", recipe, "--target", model],
            *(["--url", *words] for words in ([f"http://{NAME}"], [url, *from_prompts])),
            ["--url", url, "--api-key-file", NAME],
        ],
        "trace": [["--target", BYTES, "-o", trace], ["--target", url, "-o", trace, *from_prompts]],
        "predict": [[trace, model, "--target", model], [BYTES, BYTES]],
        "sweep": [[str(pipeline)], [BYTES, "--report", BYTES, "--accept", NAME]],
        "demo": [[NAME]],
        "recipes ls": [[]],
        "recipes show": [[recipe], [sound]],
        "recipes check": [[recipe], [sound, "--strict"]],
        "recipes import": [[str(script), "--type", type_] for type_ in (NAME, "Q4_K_M")],
        "recipes export": [[sound, "--format", NAME], [recipe, "--quant", NAME]],
        "inspect": [[file] for file in (model, log, BYTES, str(folder), trace)],
        "report": [
            [record, "--markdown", "-"],
            [record, "--html", f"{folder}/{NAME}.html"],
            *([record, "--against", other] for other in (str(history), record)),
            [NAME],
        ],
        "logs": [[log], [log, "--each"], [log, "--plot", f"{folder}/{NAME}.svg"], [BYTES]],
        "serve": [
            [record, *words]
            for words in (["--print"], ["--candidate", NAME], ["--systemd", "--host", NAME])
        ],
        "publish": [[record, f"me/{NAME}", "--dry-run"], [record, "me/x", "-n", "--quant", NAME]],
        "store ls": [[]],
        "store verify": [[]],
        "store gc": [["--kind", NAME], ["--all", "--dry-run"]],
    }
    plain = [[*command.split(), *words] for command, lists in asked.items() for words in lists]
    plain += [[NAME], ["recipes", NAME]]
    plain += [[*command, NAME, NAME, NAME, NAME] for command in every_command()]
    if not modes:
        return plain
    in_modes = [[*words, mode] for words in plain for mode in ("--json", "--quiet")]
    options = [
        [*command, *more]
        for command in every_command()
        for more in ([f"--{NAME}"], [f"--engine={NAME}", f"-{ACTS[:1]}"])
    ]
    return plain + in_modes + options + [["recipes", "schema", "--json"]]


def drive(
    arguments: Sequence[Sequence[str]], folder: Path, home: Path, *, terminal: str | None
) -> tuple[bytes, bytes]:
    """What one process says that runs all of ``arguments``, on pipes or on two terminals."""
    words = folder / "words.json"
    words.write_text(json.dumps(arguments))
    command = [sys.executable, "-c", DRIVER, str(words)]
    environ = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    environ |= {"HOME": str(folder / "user"), "COOK_HOME": str(home), "PYTHONPATH": str(ROOT)}
    environ |= {"PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    environ |= {"TERM": terminal or "dumb", "COLUMNS": "200"}
    if terminal is None:
        done = subprocess.run(
            command, env=environ, cwd=folder, capture_output=True, timeout=900, check=False
        )
        return done.stdout, done.stderr
    ends = [pty.openpty() for _ in range(2)]
    for _, slave in ends:
        settings = termios.tcgetattr(slave)
        settings[1] &= ~termios.OPOST  # bytes as they were written
        termios.tcsetattr(slave, termios.TCSANOW, settings)
    with subprocess.Popen(
        command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=ends[0][1],
        stderr=ends[1][1],
    ) as process:  # fmt: skip
        for _, slave in ends:
            os.close(slave)
        with ThreadPoolExecutor(2) as pool:
            said = [pool.submit(read_all, master) for master, _ in ends]
            process.wait(timeout=900)
            stdout, stderr = (one.result(timeout=60) for one in said)
    return stdout, stderr


def acting(said: bytes) -> list[str]:
    """Characters of ``said`` that act, each with what stands around it."""
    text = said.decode("utf-8", "surrogateescape")
    return [
        repr(text[max(0, i - 60) : i + 20])
        for i, c in enumerate(text)
        if not c.isprintable() and c not in "\n\t" and category(c) != "Zs"
    ]


@pytest.mark.parametrize(
    ("terminal", "modes"),
    [("xterm", False), *(at_length(kind, True) for kind in (None, "dumb", "xterm"))],
)
def test_nothing_acts(
    terminal: str | None, modes: bool, tmp_path: Path, attacks: Counter[str]
) -> None:
    """All invocations in one process, and what they say looked at."""
    home = tmp_path / "home"
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "user").mkdir()
    config = folder / "user" / ".config" / "cook" / "config.toml"
    texts = {"build_info": ACTS, "model_path": f"/m/{ACTS}", "chat_template": ACTS}
    props = honest()["/props"] | texts
    template = lambda body: {"prompt": body["messages"][0]["content"]}  # noqa: E731
    with liar({"/props": props, "/apply-template": template}) as server:
        words = invocations(folder, home, server.url, modes=modes)
        out, err = drive(words, folder, home, terminal=terminal)
    config.parent.mkdir(parents=True)
    config.write_text(f"{json.dumps(ACTS)} = 1\n")
    with_config = [["store", "ls"], ["doctor"], ["doctor", "--json"]]
    more = drive(with_config, folder, home, terminal=terminal)
    out, err = out + more[0], err + more[1]
    attacks["hostile invocations"] += len(words) + len(with_config)
    assert f"@@{len(words) - 1}@@".encode() in err, err[-2000:]
    for name, said in (("stdout", out), ("stderr", err)):
        assert b"\x1b[35m" not in said, "a colour that is not ours"
        plain = SGR.sub(b"", said) if terminal else said
        if terminal == "xterm":
            plain = BAR.sub(b"", plain)
        for number, part in enumerate(re.split(rb"@@\d+@@\n", plain)):
            acts = acting(part)
            which = words[number - 1] if 0 < number <= len(words) else "config"
            assert not acts, f"{name} of {which}: {acts[0]}"
            if name == "stderr":
                assert not re.search(rb"(?m)^error: forged", part), which
                assert b"Traceback" not in part, which
                assert b"this is a bug of cook" not in part, (which, part)
