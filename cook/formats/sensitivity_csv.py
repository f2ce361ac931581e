"""``kld_results.csv`` and ``ppl_results.csv``: what each tensor loses in a type, as published.

A row a type, a column a tensor, each tensor quantized alone: mean KLD in nats, or the perplexity,
absolute or as ``+2.1%`` of the baseline's. Tables of models hold one row as a rule, of a type so
small that the loss shows, and how types compare stands in ``group0/`` next to them: the same
columns for the whole model at once, a row a type (https://github.com/Thireus/GGUF-Tool-Suite,
whose ``quant_assign.py`` reads them). A cell that is empty, or 404, was not measured.

A table comes from elsewhere: its size is bounded, and a fault says file, line and column.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, isfinite, log
from pathlib import Path
from statistics import median
from typing import Literal, NoReturn

from cook.errors import InputError
from cook.formats.cursor import read_text, shown
from cook.formats.gguf import MAX_TENSORS
from cook.formats.quant_types import QuantType, by_name

Metric = Literal["kld", "perplexity"]

MAX_TABLE_BYTES = 64 << 20
MAX_ROWS = 1024
NATS_A_BIT = 1.17
"""Where no table says how types compare: each bit a weight divides KLD by e to this, as in
the suite's own for Qwen3-4B (0.61 nats at 2.3 bits, 0.047 at 4.5, 0.0039 at 6.6)."""
NOT_MEASURED = 404.0
_WHOLE_MODEL = re.compile(r"group\d+")
_BASELINES = ("f32", "bf16", "f16")


@dataclass(frozen=True, eq=False)
class Sensitivities:
    """``rows``: nats by type, then by tensor; ``curve``: nats of the whole model by type, empty
    where there is no such table; ``unknown``: rows of types that cook does not know."""

    path: Path
    metric: Metric
    rows: Mapping[QuantType, Mapping[str, float]]
    curve: Mapping[QuantType, float]
    unknown: tuple[str, ...]

    def nats(self, tensor: str, type_name: str) -> float | None:
        """The cost of ``tensor`` alone in a type; None where no row has the tensor.

        Of another type's row the nearest in bits is taken, times what the types differ by.
        """
        wanted = by_name(type_name)
        having = [row for row in self.rows if tensor in self.rows[row]]
        if not having:
            return None
        row = min(having, key=lambda t: (t is not wanted, abs(t.bpw - wanted.bpw)))
        found = self.rows[row][tensor]
        if wanted is row:
            return found
        if wanted in self.curve and self.curve.get(row):
            return found * (self.curve[wanted] / self.curve[row])
        return found * exp(NATS_A_BIT * (row.bpw - wanted.bpw))


def read_sensitivities(path: Path) -> Sensitivities:
    """The table of ``path``, and how types compare by the one in ``group0/`` next to it.

    InputError says what is wrong with either, and where.
    """
    table = _Table(path)
    if table.whole_model:
        raise InputError(
            f"{path}: compares types over the whole model, and has no tensor",
            hint=f"give the {path.name} with a column for each tensor",
        )
    of_model = path.parent / "group0" / path.name
    curve = _Table(of_model) if of_model.is_file() else None
    if curve is not None and not curve.whole_model:
        raise InputError(f"{of_model}: has tensors for columns, where one of the model is wanted")
    return Sensitivities(
        path,
        table.metric,
        {t: table.nats(row) for t, row in table.rows.items()},
        {} if curve is None else {t: sum(curve.nats(r).values()) for t, r in curve.rows.items()},
        table.unknown,
    )


class _Table:
    """One file: figures by type and column, as they stand there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kinds: dict[str, Metric] = {"kld": "kld", "ppl": "perplexity"}
        found = [metric for word, metric in kinds.items() if word in path.name.lower()]
        if not found:
            raise InputError(
                f"{path}: kld or ppl in the file's name says which figure it holds",
                hint=f"mv {path.name} kld_{path.name}, if it holds KLD",
            )
        self.metric = found[0]
        self.rows: dict[QuantType, dict[str, float]] = {}
        self.relative = False
        """Perplexities are shares above the baseline's."""
        unknown = []
        lines = _lines(path)
        _, head = next(lines, (1, []))
        columns = head[1:]
        if not columns or head[0].strip().lower() != "qtype":
            self._fault(1, 1, "a table begins with QTYPE and a column for each tensor")
        if len(set(columns)) < len(columns):
            twice = next(n for n, name in enumerate(columns) if name in columns[:n])
            self._fault(1, twice + 2, f"{shown(columns[twice])} stands there twice")
        self.whole_model = all(_WHOLE_MODEL.fullmatch(name) for name in columns)
        for number, cells in lines:
            if len(cells) != len(head):
                self._fault(number, 1, f"{len(cells)} cells, and the first line has {len(head)}")
            row = {
                name: value
                for n, (name, cell) in enumerate(zip(columns, cells[1:], strict=True))
                if (value := self._value(number, n + 2, cell)) is not None
            }
            try:
                known = by_name(cells[0].strip())
            except InputError:
                unknown.append(cells[0].strip())
                continue
            if known in self.rows:
                self._fault(number, 1, f"{known.name} has a row already")
            self.rows[known] = row
        self.unknown = tuple(unknown)
        if not any(self.rows.values()):
            raise InputError(f"{path}: holds no figure of a type that cook knows")

    def nats(self, row: Mapping[str, float]) -> dict[str, float]:
        """``row`` as nats lost, never below 0: what gains is noise.

        A perplexity is held against a row of 16 bits or more, else against the row's median: most
        tensors alone change little.
        """
        if self.metric == "kld":
            return {name: max(value, 0.0) for name, value in row.items()}
        if self.relative:
            return {name: log(max(1 + value, 1.0)) for name, value in row.items()}
        base = dict.fromkeys(row, median(row.values())) if row else {}
        for plain in reversed([r for t, r in self.rows.items() if t.name in _BASELINES]):
            base |= plain
        return {name: max(log(value / base[name]), 0.0) for name, value in row.items()}

    def _value(self, line: int, column: int, cell: str) -> float | None:
        text = cell.strip().removesuffix("%").strip()
        relative = cell.strip().endswith("%")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            self._fault(line, column, f"{shown(cell)} is no figure")
        if value == NOT_MEASURED:
            return None
        if self.metric == "perplexity":
            if not relative and value <= 0:
                self._fault(line, column, f"{shown(cell)} is no perplexity")
            if self.rows and relative is not self.relative:
                self._fault(line, column, "shares and perplexities are mixed")
            self.relative = relative
        return value / 100 if relative else value

    def _fault(self, line: int, column: int, what: str) -> NoReturn:
        raise InputError(f"{self.path}:{line}:{column}: {what}")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of lines that are not empty; InputError for what is no table."""
    reader = csv.reader(read_text(path, MAX_TABLE_BYTES).splitlines())
    rows = 0
    try:
        for cells in filter(None, reader):
            rows += 1
            if rows > MAX_ROWS or len(cells) > MAX_TENSORS + 1:
                raise InputError(
                    f"{path}:{reader.line_num}: more than {MAX_ROWS} types or {MAX_TENSORS} tensors"
                )
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: {error}") from None
