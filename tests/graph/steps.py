"""Steps of tests, each known by a word; workers in other processes import this file."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from cook.engines.process.outcome import ProcessSpec
from cook.errors import StepError
from cook.graph.step import Input, JsonValue, Needs, Step, Workbench


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Worded(Step[Text]):
    """Joins the texts of the steps ``below``, or fails; its word alone decides its result."""

    word: str
    below: tuple[Step[Any], ...] = field(default=(), kw_only=True)
    fails: str = field(default="", kw_only=True)

    @property
    def label(self) -> str:
        return f"{self.kind} {self.word}"

    def inputs(self) -> Mapping[str, Input]:
        return {**super().inputs(), **{str(n): step for n, step in enumerate(self.below)}}

    def params(self) -> Mapping[str, JsonValue]:
        return {"word": self.word}

    def run(self, bench: Workbench) -> Text:
        if self.fails:
            raise StepError(f"{self.word} broke", hint="mend it", log=Path("broken.log"))
        parts = [bench.file(step, "text").read_text() for step in self.below]
        text = f"{self.word}({','.join(parts)})"
        (bench.directory / "text").write_text(text)
        return Text(text)


@dataclass(frozen=True)
class Nap(Worded):
    """Sleeps ``seconds`` in a program of its own, and notes in ``diary`` that it did."""

    diary: Path = field(compare=False)
    seconds: float = 0.0
    needed: Needs | None = None

    kind: ClassVar[str] = "nap"

    def needs(self) -> Needs:
        return self.needed or super().needs()

    def run(self, bench: Workbench) -> Text:
        with self.diary.open("a") as diary:
            diary.write(f"{self.word} {os.getpid()}\n")
        if self.fails == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        # No other program sleeps with this argument.
        spec = ProcessSpec(("/bin/sleep", f"{self.seconds:.3f}", "0.000077"), "sleep", env={})
        bench.supervisor.run(spec).check()
        return super().run(bench)


class TimedNap(Nap):
    """The same, timed."""

    kind: ClassVar[str] = "timed-nap"
    timed: ClassVar[bool] = True


def naps() -> list[int]:
    """Processes that sleep for a :class:`Nap`, whoever started them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            if line.startswith(b"/bin/sleep\0") and line.endswith(b"\x000.000077\0"):
                found.append(int(path.parent.name))
    return found
