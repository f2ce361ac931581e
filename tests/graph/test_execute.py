"""The executor runs what is missing, reuses what is there, and survives failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from cook.errors import StepError
from cook.graph.execute import Executor
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.graph.store import Store
from cook.output import Mode, Output


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Join(Step[Text]):
    """Joins its inputs' texts; fails on request."""

    word: str
    below: tuple[Step[Any], ...] = ()
    fails: bool = False

    kind: ClassVar[str] = "join"
    result_type: ClassVar[type] = Text

    @property
    def label(self) -> str:
        return f"join {self.word}"

    def inputs(self) -> Mapping[str, Input]:
        return {str(i): s for i, s in enumerate(self.below)}

    def params(self) -> Mapping[str, JsonValue]:
        return {"word": self.word}

    def run(self, bench: Workbench) -> Text:
        if self.fails:
            raise StepError(f"{self.word} broke")
        parts = [bench.file(s, "text").read_text() for s in self.below]
        text = self.word + "(" + ",".join(parts) + ")"
        (bench.directory / "text").write_text(text)
        return Text(text)


def executor(tmp_path: Path, **options: Any) -> Executor:
    return Executor(
        Store(tmp_path / "store"), Output(Mode.QUIET), logs=tmp_path / "logs", **options
    )


def test_runs_inputs_first_and_once(tmp_path: Path) -> None:
    a = Join("a")
    b, c = Join("b", (a,)), Join("c", (a,))
    top = Join("top", (b, c))
    outcomes = executor(tmp_path).run([top])
    assert outcomes.result(top) == Text("top(b(a()),c(a()))")
    assert sorted(outcomes.ran) == ["join a", "join b", "join c", "join top"]


def test_nothing_runs_the_second_time(tmp_path: Path) -> None:
    top = Join("top", (Join("a"),))
    executor(tmp_path).run([top])
    outcomes = executor(tmp_path).run([top])
    assert outcomes.ran == []
    assert outcomes.result(top) == Text("top(a())")


def test_a_change_reruns_only_what_depends_on_it(tmp_path: Path) -> None:
    a, b = Join("a"), Join("b")
    executor(tmp_path).run([Join("top", (a, b))])
    outcomes = executor(tmp_path).run([Join("top", (a, Join("B")))])
    assert outcomes.ran == ["join B", "join top"]


def test_a_failure_blocks_only_its_dependents(tmp_path: Path) -> None:
    bad = Join("bad", fails=True)
    above, beside = Join("above", (bad,)), Join("beside")
    outcomes = executor(tmp_path).run([above, beside])
    assert outcomes.result(beside) == Text("beside()")
    assert outcomes.failures[bad.key].error.message == "bad broke"
    assert outcomes.failures[above.key].blocked_by == "join bad"
    assert outcomes.result(above) is None


def test_jobs_side_by_side_give_the_same(tmp_path: Path) -> None:
    steps = [Join(f"s{i}", (Join(f"t{i}"),)) for i in range(8)]
    top = Join("top", tuple(steps))
    one = executor(tmp_path / "one").run([top]).result(top)
    assert executor(tmp_path / "many", jobs=4).run([top]).result(top) == one


def test_fresh_measures_again(tmp_path: Path) -> None:
    step = Join("a")
    executor(tmp_path).run([step])
    assert executor(tmp_path, fresh=True).run([step]).ran == ["join a"]


@given(st.text(max_size=20), st.text(max_size=20))
def test_keys_are_equal_exactly_when_the_parts_are(one: str, other: str) -> None:
    assert (Join(one).key == Join(other).key) == (one == other)


@given(st.lists(st.sampled_from("abcd"), max_size=4), st.lists(st.sampled_from("abcd"), max_size=4))
def test_keys_follow_the_inputs(one: list[str], other: list[str]) -> None:
    left = Join("top", tuple(Join(w) for w in one))
    right = Join("top", tuple(Join(w) for w in other))
    assert (left.key == right.key) == (one == other)
