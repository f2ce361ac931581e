"""Steps of tests: each is known by a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cook.graph.step import Input, JsonValue, Step


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Worded(Step[Text]):
    """Needs the steps ``below``; its word alone decides its result."""

    word: str
    below: tuple[Step[Any], ...] = field(default=(), kw_only=True)

    @property
    def label(self) -> str:
        return f"{self.kind} {self.word}"

    def inputs(self) -> Mapping[str, Input]:
        return {str(number): step for number, step in enumerate(self.below)}

    def params(self) -> Mapping[str, JsonValue]:
        return {"word": self.word}
