"""The one way out of cook: stdout is data, stderr is everything else.

Modes: *human* (tables, notices, progress), *json* (one document on stdout, notices on stderr)
and *quiet* (data only, tables as tab-separated values). A reader that goes away (``| head``)
never stops the work: what it does not want is dropped.

Names of files, keys of recipes, ids of prompts, words of engines and servers are other people's
text. Whatever a method here is given is made :func:`printable` before it is written, so that no
caller has to think of it: nothing but line ends and cook's own colours reaches a terminal.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from cook.errors import InternalError, PrerequisiteError
from cook.text_table import Column as Column
from cook.text_table import table, wrapped
from cook.units import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress as RichProgress
    from rich.text import Text

MISSING = "-"
NARROWEST = 40
"""A terminal that says it is narrower is written to as if it were not."""
USUAL = 80
"""Width of a terminal that does not say its own."""


def right(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers, which read best aligned right."""
    return tuple(Column(title, "right") for title in titles)


class Mode(StrEnum):
    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


def plain(value: object) -> Any:
    """``value`` as JSON's own types: models, dataclasses, enums, paths and sets included."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "model_dump"):  # pydantic, without importing it for those who have none
        return plain(value.model_dump(mode="json", by_alias=True))
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    raise InternalError(f"no JSON form for {type(value).__name__}")


def json_text(document: object, *, indent: int | None = 2) -> str:
    """``document`` as JSON, on one line without ``indent``; ValueError for NaN and infinity.

    Letters stay as they are; what is not :func:`printable` stands as JSON's own escape.
    """
    import json

    separators = (",", ":") if indent is None else None
    text = json.dumps(
        plain(document), indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
    )
    # Outside of strings JSON has no such characters but its own line ends.
    return _escaped(text, kept="\n", escape=lambda c: json.dumps(c)[1:-1])


def printable(text: str, *, kept: str = "") -> str:
    r"""``text`` with every character that acts or hides instead of being seen as its escape.

    Those are controls (C0, DEL, C1), what turns the direction of a line or joins and hides
    (bidi marks, zero width, tags), line separators and lone surrogates: what ``repr`` escapes,
    but for wide and unbreakable spaces. ESC becomes ``\x1b``, a right-to-left override
    ``\u202e``. Characters in ``kept`` (a block's line ends and tabs) stay.
    """
    return _escaped(text, kept=kept, escape=lambda c: repr(c)[1:-1])


def _escaped(text: str, *, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    from unicodedata import category

    return "".join(
        c if c.isprintable() or c in kept or category(c) == "Zs" else escape(c) for c in text
    )


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` can show a bar that redraws itself."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


def terminal_width(stream: TextIO) -> int | None:
    """How many places a line of ``stream`` has; None where it is no terminal."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    try:
        places = (
            int(columns) if columns.isdecimal() else os.get_terminal_size(stream.fileno()).columns
        )
    except (OSError, ValueError):
        places = 0
    return max(places, NARROWEST) if places else USUAL


class Output:
    """Where a command writes; ``stdout`` and ``stderr`` default to the process's own.

    On a terminal, lines are broken between words, with what follows indented.
    """

    def __init__(
        self, mode: Mode = Mode.HUMAN, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.mode = mode
        self.emitted = False
        self._stdout = stdout
        self._stderr = stderr
        self._above: Console | None = None
        """Where notices go while something below redraws itself."""

    @property
    def stdout(self) -> TextIO:
        return self._stdout or sys.stdout

    @property
    def stderr(self) -> TextIO:
        return self._stderr or sys.stderr

    def data(self, *parts: str) -> None:
        """A line of the answer, its parts separated by tabs; in json mode see :meth:`emit`."""
        if self.mode is Mode.JSON:
            return
        text = "\t".join(printable(part) for part in parts)
        width = terminal_width(self.stdout) if self.mode is Mode.HUMAN else None
        write_line(self.stdout, text if len(parts) > 1 else _broken(text, width))

    def block(self, text: str) -> None:
        """Lines of the answer that are a text of their own: a recipe, a script, a report."""
        if self.mode is not Mode.JSON:
            write_line(self.stdout, printable(text.rstrip("\n"), kept="\n\t"))

    def emit(self, document: object) -> None:
        """The answer as one JSON document, in json mode only; a command emits at most once."""
        if self.mode is not Mode.JSON:
            return
        if self.emitted:
            raise InternalError("a command emitted two JSON documents")
        text = json_text(document)
        self.emitted = True
        write_line(self.stdout, text)

    def table(self, rows: Sequence[Sequence[object]], columns: Sequence[Column | str]) -> None:
        """The answer as a table; ``None`` shows as ``-``. Quiet mode: tab-separated, no titles."""
        if self.mode is Mode.JSON:
            return
        heads = [Column(c) if isinstance(c, str) else c for c in columns]
        heads = [replace(head, title=printable(head.title)) for head in heads]
        cells = [[MISSING if c is None else printable(str(c)) for c in row] for row in rows]
        if self.mode is Mode.QUIET:
            for row in cells:
                write_line(self.stdout, "\t".join(row))
            return
        for line in table(cells, heads, terminal_width(self.stdout)):
            write_line(self.stdout, line)

    def say(self, text: str) -> None:
        """A notice on stderr; nothing in quiet mode. Its further lines are indented."""
        if self.mode is not Mode.QUIET:
            self._notice(_lines(text))

    def relay(self, text: str) -> None:
        """Output of a program that cook runs for the user, as it comes; nothing in quiet mode."""
        if self.mode is not Mode.QUIET:
            _write(self.stderr, printable(text, kept="\n\t"))

    def warn(self, message: str, hint: str | None = None) -> None:
        """A warning on stderr, in every mode."""
        self._tagged("warning", "33", message, hint)

    def error(self, message: str, hint: str | None = None) -> None:
        """An error on stderr, in every mode; the boundary calls it, commands raise."""
        self._tagged("error", "31", message, hint)

    @property
    def redraws(self) -> bool:
        """Whether progress is shown by what redraws itself."""
        return self.mode is not Mode.QUIET and is_terminal(self.stderr)

    @contextmanager
    def progress(self, total: int, label: str) -> Iterator[Progress]:
        """How far ``label`` is: a bar on a terminal, else a line for each change of state."""
        started = time.monotonic()
        bar = _bar(self.stderr, total, label) if self.redraws else None
        if bar is not None:
            self._above = bar.console
        else:
            self.say(f"{label}: started")
        end = "stopped"
        try:
            with bar or nullcontext():
                yield Progress(self, label, bar)
            end = "done"
        finally:
            self._above = None
            self.say(f"{label}: {end} after {time.monotonic() - started:.1f} s")

    def steps(self, total: Callable[[], int], left: Callable[[], str]) -> Steps:
        """The display of a run's steps; see :class:`Steps`."""
        return Steps(self, total, left)

    def _tagged(self, tag: str, color: str, message: str, hint: str | None) -> None:
        text = _broken(f"{tag}: {_lines(message)}", terminal_width(self.stderr))
        if self.stderr.isatty() and not os.environ.get("NO_COLOR"):
            text = f"\x1b[1;{color}m{tag}\x1b[0m{text.removeprefix(tag)}"
        self._written(text)
        if hint:
            self._notice(f"hint: {_lines(hint)}")

    def _notice(self, text: str) -> None:
        self._written(_broken(text, terminal_width(self.stderr)))

    def _written(self, text: str) -> None:
        """``text`` is printable by now, but for our own colour."""
        if self._above is not None:
            self._above.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            write_line(self.stderr, text)


@dataclass
class Progress:
    """How far one thing is; for steps side by side there is :class:`Steps`."""

    output: Output
    label: str
    bar: RichProgress | None
    done: int = 0
    said: str = ""

    def advance(self, count: int = 1) -> None:
        """``count`` more of the total are done."""
        self.to(self.done + count)

    def to(self, done: int) -> None:
        """``done`` of the total are done."""
        self.done = done
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done)

    def state(self, text: str) -> None:
        """What is going on now; a line of its own where there is no bar."""
        if text == self.said:
            return
        self.said = text
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], state=printable(text))
        else:
            self.output.say(f"{self.label}: {text}")


SHOWN_STEPS = 16
"""Most steps shown of those that run side by side."""


@dataclass
class RunningStep:
    """A step that runs. ``share`` of it is done; ``where``: on another machine, which it
    ``waits`` for at first."""

    label: str
    share: float = 0.0
    where: str = ""
    waits: bool = False

    def to(self, share: float) -> None:
        """That much of it is done, of 1."""
        self.share = share


@dataclass
class Steps:
    """The steps of a run, also side by side: one display on a terminal, with which step this is,
    the time it took so far and what is left; elsewhere one line for each that ended.

    ``total``: how many steps there are, as far as is known by now; ``left``: how long they still
    take, as words, empty where it is unknown. Steps may begin and end in several threads.
    """

    output: Output
    total: Callable[[], int]
    left: Callable[[], str]
    began: float = field(default_factory=time.monotonic)
    ended: int = 0
    running: list[RunningStep] = field(default_factory=list)
    _live: Live | None = None

    def __enter__(self) -> Self:
        if self.output.redraws:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.output.stderr)
            self._live = Live(
                console=console, get_renderable=self._drawn, transient=True, refresh_per_second=4
            )
            self.output._above = console
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = self.output._above = None

    @contextmanager
    def step(self, label: str) -> Iterator[RunningStep]:
        """A step that runs within the block; one that raises did not end."""
        part = RunningStep(label)
        self.running.append(part)
        started = time.monotonic()
        try:
            yield part
        finally:
            self.running.remove(part)
        self.ended += 1
        if self._live is None:
            parts = [duration(time.monotonic() - started), self.left()]
            text = ", ".join(filter(None, parts))
            self.output.say(f"{self._place(self.ended)}: {_named(part)}, {text}")

    def _place(self, number: int) -> str:
        return f"step {number} of {max(number, self.total())}"

    def _drawn(self) -> Text:
        from rich.text import Text

        spent_s = int(time.monotonic() - self.began)
        clock = f"{spent_s // 3600}:{spent_s // 60 % 60:02}:{spent_s % 60:02}"
        parts = [self._place(self.ended + 1), f"{clock} elapsed", self.left()]
        lines = [", ".join(filter(None, parts))]
        running = [p for p in list(self.running) if not p.waits]
        lines += [f"  {p.share:4.0%}  {_named(p)}" for p in running[:SHOWN_STEPS]]
        if hidden := len(self.running) - min(len(running), SHOWN_STEPS):
            lines.append(f"  and {hidden} more, running or waiting for a place")
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _named(step: RunningStep) -> str:
    return printable(f"{step.label}, on {step.where}" if step.where else step.label)


def _broken(text: str, width: int | None) -> str:
    """Lines of at most ``width`` places, where words allow that; what follows is indented."""
    if width is None:
        return text
    return "\n".join(line for long in text.split("\n") for line in wrapped(long, width, "  "))


def write_line(stream: TextIO, text: str) -> None:
    """Write ``text`` and a newline now; a reader that is gone gets nothing more, silently.

    PrerequisiteError where stdout cannot be written for another reason.
    """
    _write(stream, f"{text}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"  # of the C locale: ASCII
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        silence(stream)
        if stream is not sys.stderr:  # which could not be reported
            raise PrerequisiteError(
                f"stdout: {error.strerror}", hint="redirect it to a place that can be written"
            ) from error


def silence(stream: TextIO) -> None:
    """Send the rest of a real stream nowhere, so that nothing fails on it again, exit included."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def open_standard_streams() -> None:
    """Give what the process was started without (``>&-``) to nowhere: else the next file that is
    opened would be stdout, and there is no stream to write to."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _lines(text: str) -> str:
    """A notice: lines after the first are indented, so that no name forges one of cook's own."""
    return re.sub(r"\n(?!  )", "\n  ", printable(text, kept="\n"))


def _bar(stream: TextIO, total: int, label: str) -> RichProgress:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[state]}", markup=False),
        console=Console(file=stream),
        transient=True,
    )
    bar.add_task(printable(label), total=total, state="")
    return bar
