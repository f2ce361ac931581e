"""The output sink: what goes where in each mode, and readers that go away."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest
from pydantic import BaseModel

from cook.errors import InternalError
from cook.output import Column, Mode, Output, json_text, plain, printable
from cook.text_table import width_of
from tests.terminals import drawn_lines, in_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(mode: Mode = Mode.HUMAN) -> Output:
    return Output(mode, io.StringIO(), io.StringIO())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Output:
    """One whose notices go to a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    return Output(Mode.HUMAN, io.StringIO(), Terminal())


def texts(output: Output) -> tuple[str, str]:
    assert isinstance(output.stdout, io.StringIO)
    assert isinstance(output.stderr, io.StringIO)
    return output.stdout.getvalue(), output.stderr.getvalue()


def use_everything(output: Output) -> None:
    output.say("notice")
    output.data("data")
    output.table([("a", 1), ("bb", None)], ["name", Column("count", "right")])
    output.emit({"answer": 42})
    output.warn("odd", "look")


NOTICES = "warning: odd\nhint: look\n"


@pytest.mark.parametrize(
    ("mode", "out", "err"),
    [
        (Mode.HUMAN, "data\nname  count\na         1\nbb        -\n", f"notice\n{NOTICES}"),
        (Mode.JSON, '{\n  "answer": 42\n}\n', f"notice\n{NOTICES}"),
        (Mode.QUIET, "data\na\t1\nbb\t-\n", NOTICES),
    ],
)
def test_each_mode_says_what_is_its_own(mode: Mode, out: str, err: str) -> None:
    output = make(mode)
    use_everything(output)
    assert texts(output) == (out, err)


def test_json_is_one_document_and_quiet_has_no_progress() -> None:
    output, quiet = make(Mode.JSON), make(Mode.QUIET)
    output.emit({})
    with pytest.raises(InternalError, match="two JSON documents"):
        output.emit({})
    with quiet.progress(3, "work") as progress:
        progress.state("half")
    assert texts(quiet) == ("", "")


def test_progress_without_a_terminal_is_a_line_a_change() -> None:
    output = make()
    with output.progress(2, "quantize") as progress:
        for _ in range(2):
            progress.state("tensor")
            progress.advance()
        progress.state("verify")
    *lines, last = texts(output)[1].splitlines()
    assert lines == ["quantize: started", "quantize: tensor", "quantize: verify"]
    assert last.startswith("quantize: done after ")
    assert texts(output)[0] == ""


def test_progress_says_that_it_was_stopped() -> None:
    output = make()
    with pytest.raises(ValueError, match="no"), output.progress(1, "work"):
        raise ValueError("no")
    assert "work: stopped after" in texts(output)[1]


def test_progress_on_a_terminal_is_a_bar(terminal: Output) -> None:
    with terminal.progress(2, "work [not markup]") as progress:
        progress.advance()
        progress.state("\x1b]0;t\x07")
        terminal.say("said above the bar")
    out, err = texts(terminal)
    assert out == ""
    assert "work [not markup]" in err
    assert "said above the bar\n" in err
    assert "work [not markup]: done after" in err
    assert "\x1b]" not in err
    assert "\x07" not in err


def test_steps_without_a_terminal_are_a_line_each() -> None:
    output = make()
    with output.steps(lambda: 2, lambda: "about 3 s left") as steps:
        for label in ("quantize A", "quantize B"):
            with steps.step(label) as part:
                part.to(0.5)
        with pytest.raises(ValueError, match="no"), steps.step("fails"):
            raise ValueError("no")
    for number, line in enumerate(texts(output)[1].splitlines(), 1):
        name = "AB"[number - 1]
        wanted = rf"step {number} of 2: quantize {name}, \d+\.\d s, about 3 s left"
        assert re.fullmatch(wanted, line)


def test_steps_side_by_side_share_one_display(terminal: Output) -> None:
    with (
        terminal.steps(lambda: 27, lambda: "about 4 min left") as steps,
        steps.step("quantize A [not markup]") as one,
        steps.step("quantize B \x1b]0;t\x07"),
    ):
        one.to(0.42)
        drawn = str(steps._drawn())
        steps._live.refresh()
        terminal.say("said above the display")
    first, *rest = drawn.splitlines()
    assert re.fullmatch("step 1 of 27, 0:00:.. elapsed, about 4 min left", first)
    assert rest == ["   42%  quantize A [not markup]", "    0%  quantize B \\x1b]0;t\\x07"]
    said = texts(terminal)[1]
    assert "said above the display\n" in said
    assert "quantize B" in said
    assert "\x1b]" not in said


def test_lines_on_a_terminal_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    output = Output(Mode.HUMAN, Terminal(), Terminal())
    text = "it takes --spec-draft-n-max 4 and the file /models/a/b/c/d.gguf as it is"
    output.data(text)
    output.warn(text, "try again with --spec-draft-n-max 8")
    for said in texts(output):
        assert max(map(len, said.splitlines())) <= 40
        for word in text.split():
            assert word in said.split()


@pytest.mark.parametrize("term", ["dumb", ""])
def test_no_bar_on_a_dumb_terminal(
    term: str, terminal: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with terminal.progress(2, "work"):
        pass
    assert "work: started\n" in texts(terminal)[1]


def test_color_only_on_a_terminal_without_no_color(
    terminal: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal.error("bad", "mend")
    colored = "\x1b[1;31merror\x1b[0m: bad\nhint: mend\n"
    assert texts(terminal)[1] == colored
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.error("bad", "mend")
    assert texts(terminal)[1] == colored + "error: bad\nhint: mend\n"


class Gone(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_left_stops_nothing() -> None:
    use_everything(Output(Mode.HUMAN, Gone(), Gone()))


def test_a_real_pipe_that_closes_leaves_no_trace() -> None:
    code = "import cook.output; o = cook.output.Output(); [o.data('x' * 80) for _ in range(20000)]"
    command = f"{sys.executable} -c \"{code}; o.say('went on')\" | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("x" * 80 + "\n", "went on\n")


def test_text_that_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    output = Output(Mode.HUMAN, io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    output.data("± \udcff")
    assert raw.getvalue() == b"\\xb1 \\udcff\n"


class Kind(StrEnum):
    ONE = "one"


class Model(BaseModel):
    kind: Kind = Kind.ONE
    path: Path = Path("b")


def test_plain_makes_json_of_our_own_types() -> None:
    head = Column("a", "right")
    made = plain({"r": (head, Path("a"), frozenset({"y", "x"}), None), Kind.ONE: Model()})
    assert made == {
        "r": [{"title": "a", "align": "right"}, "a", ["x", "y"], None],
        "one": {"kind": "one", "path": "b"},
    }


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_text({"speed": float("nan")})
    with pytest.raises(InternalError, match="object"):
        json_text(object())


HOSTILE = "a\x1b]0;t\x07\r\x9b2J\u202e\u2028\x00\ttab\nb"
SHOWN = r"a\x1b]0;t\x07\r\x9b2J\u202e\u2028\x00\ttab\nb"


def test_printable_shows_what_acts_and_keeps_what_is_seen() -> None:
    assert printable(HOSTILE) == SHOWN
    seen = "é 漢字\u3000\xa0🙂 \\x1b"
    assert printable(seen) == seen
    assert printable("a\nb\tc\x1b", kept="\n\t") == "a\nb\tc\\x1b"


@pytest.mark.parametrize("mode", Mode)
def test_nothing_that_acts_leaves_by_any_way(mode: Mode) -> None:
    output = make(mode)
    output.say(HOSTILE)
    output.data(HOSTILE, "other part")
    output.block(HOSTILE)
    output.table([(HOSTILE, 1)], [HOSTILE, "n"])
    output.warn(HOSTILE, HOSTILE)
    output.error(HOSTILE, HOSTILE)
    output.relay(HOSTILE)
    with output.progress(1, HOSTILE) as progress:
        progress.state(HOSTILE)
    output.emit({HOSTILE: HOSTILE})
    for said in texts(output):
        assert all(c.isprintable() or c in "\n\t" for c in said)
        assert mode is Mode.QUIET or SHOWN.partition(r"\t")[0] in said or "\\u001b" in said


def test_no_name_forges_a_line() -> None:
    output = make()
    output.error("a\nerror: forged", "b\nwarning: forged")
    output.say("c\n  log of an engine\nd")
    assert texts(output)[1].splitlines() == [
        "error: a",
        "  error: forged",
        "hint: b",
        "  warning: forged",
        "c",
        "  log of an engine",
        "  d",
    ]


def test_json_escapes_as_json_does() -> None:
    for indent in (None, 2):
        text = json_text({"k": HOSTILE + "\U000e0041é"}, indent=indent)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert json.loads(text) == {"k": HOSTILE + "\U000e0041é"}
        assert "é" in text


STEPS = """
import threading, time
from cook.output import Output
output = Output()
with output.steps(lambda: 27, lambda: "about 4 min 20 s left") as steps:
    def run(label):
        with steps.step(label) as part:
            for tenth in range(1, 11):
                time.sleep(0.05)
                part.to(tenth / 10)
            output.say(f"{label}: said above the display")
    names = ("A", "Ling-flash-2.0-IQ1_KT-PUFFED-with-a-name-that-is-longer-than-the-line-has-room")
    threads = [threading.Thread(target=run, args=(f"quantize {n} (bundled)",)) for n in names]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("the answer")
"""


def test_steps_side_by_side_in_a_real_terminal(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", STEPS]
    status, text = in_terminal(argv, 80, {"PATH": os.environ["PATH"]}, tmp_path)
    assert status == 0, text
    lines = drawn_lines(text)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("step 1 of 27, 0:00:0") for line in lines)
    assert any(line.endswith("about 4 min 20 s left") for line in lines)
    both = [line for line in lines if "%  quantize " in line]
    assert {line.split()[2][:4] for line in both} == {"A", "Ling"}
    assert lines[-1] == "the answer"


@pytest.mark.parametrize("command", ["logs ik-verbose-2025.log", "recipes ls", "predict"])
def test_no_command_writes_a_line_wider_than_the_terminal(command: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    environment["COOK_HOME"] = str(tmp_path / "home")
    argv = [sys.executable, "-m", "cook", *command.split()]
    logs = Path(__file__).parent / "data" / "server_logs"
    _, whole = in_terminal(argv, 1000, environment, logs)
    for width in (80, 120):
        _, text = in_terminal(argv, width, environment, logs)
        assert max(map(width_of, text.splitlines())) <= width
        gone = {word.rstrip(",") for word in whole.split()} - {
            word.rstrip(",") for word in text.split()
        }
        assert len(gone) <= 1, "at most the title of a row's name"
