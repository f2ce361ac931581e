"""Small changes of cook's code that its tests should catch, drawn by a committed seed.

    python tools/mutants.py list              draws tests/data/oracles/mutants.json again
    python tools/mutants.py run [NUMBER ...]  runs all of them, or those; a line each on stdout

A run changes a copy of the checkout, and runs the module's own test files and the oracles there,
those without an engine: `caught` where they fail, `survived` where they pass, `timed out` after
90 s. Rounds of it belong to a machine that does nothing else. The list survives changes of other
lines; at f8c343a 22 of its first 60 were caught.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "data" / "oracles" / "mutants.json"
SEED, COUNT, LIMIT_S = 20_261_128, 60, 90
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutant:
    """``before`` stands in ``file`` at ``column`` (bytes, from 0) of the stripped line
    ``source``, which was number ``line`` when it was drawn."""

    file: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    source: str

    def applied(self, text: str) -> str:
        """``text`` changed in the nearest line that is as listed, whatever came before it."""
        lines = text.encode().splitlines(keepends=True)
        source, before = self.source.encode(), self.before.encode()
        same = [at for at, line in enumerate(lines) if line.strip() == source]
        if not same:
            raise SystemExit(f"{self.file}:{self.line}: is not as listed; run `list` again")
        at = min(same, key=lambda at: abs(at + 1 - self.line))
        line = lines[at]
        indent = len(line) - len(line.lstrip())
        start = indent + self.column
        rest = line[start + len(before) :]
        lines[at] = line[:start] + self.after.encode() + rest
        return b"".join(lines).decode()


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Every change of one node, by kind, as an expression in its place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS[type(node.ops[0])]()
        yield "operator", ast.Compare(node.left, [other], node.comparators)
        for number, side in enumerate((node.left, node.comparators[0])):
            if (more := one_more(side)) is not None:
                sides = (more, node.comparators[0]) if number == 0 else (node.left, more)
                yield "constant", ast.Compare(sides[0], node.ops, [sides[1]])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(isinstance(side, (ast.JoinedStr, ast.List)) for side in (node.left, node.right)):
            yield "operator", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
        if (more := one_more(node.right)) is not None:
            yield "constant", ast.BinOp(node.left, node.op, more)
    elif isinstance(node, ast.BoolOp):
        for number in range(len(node.values)):
            rest = [value for at, value in enumerate(node.values) if at != number]
            yield "condition", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", node.operand


def one_more(node: ast.expr) -> ast.Constant | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    return None


def mutants(path: Path) -> list[Mutant]:
    """All of one file, of expressions on one line."""
    text = path.read_text(encoding="utf-8")
    lines = text.encode().splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        before = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        if not is_source_of(before, node):  # inside an f-string, whose places are not the text's
            continue
        line = lines[node.lineno - 1]
        column = node.col_offset - (len(line) - len(line.lstrip()))
        place = (path.relative_to(ROOT).as_posix(), node.lineno, column)
        found += [
            Mutant(*place, kind, before, f"({ast.unparse(after)})", line.strip().decode())
            for kind, after in changed(node)
        ]
    return sorted(found, key=lambda m: (m.line, m.column, m.kind, m.after))


def is_source_of(text: str, node: ast.expr) -> bool:
    try:
        return ast.unparse(ast.parse(text, mode="eval")) == ast.unparse(node)
    except SyntaxError:
        return False


def drawn() -> list[Mutant]:
    """A file by its lines, then one of its changes; nothing twice."""
    every = {path: mutants(path) for path in sorted((ROOT / "cook").rglob("*.py"))}
    files = [path for path, own in every.items() if own]
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    rng = random.Random(SEED)
    found: dict[Mutant, None] = {}
    while len(found) < COUNT:
        (path,) = rng.choices(files, lines)
        found[rng.choice(every[path])] = None
    return list(found)


def tests_of(mutant: Mutant, root: Path) -> list[str]:
    """The module's own test files, and the oracles."""
    module = Path(mutant.file).relative_to("cook")
    own = (root / "tests" / module.parent).glob(f"test_{module.stem}*.py")
    return [*sorted(map(str, own)), str(root / "tests" / "oracles")]


def outcome(mutant: Mutant, root: Path) -> str:
    file = root / mutant.file
    text = file.read_text(encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    words += ["-m", "not engine and not ik and not soak", *tests_of(mutant, root)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    file.write_text(mutant.applied(text), encoding="utf-8")
    try:
        with subprocess.Popen(  # a group of its own: what the tests start ends with them
            words,
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return "survived" if process.wait(LIMIT_S) == 0 else "caught"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "timed out"
    finally:
        file.write_text(text, encoding="utf-8")


def main(words: list[str]) -> None:
    if words[:1] == ["list"]:
        lines = ",\n".join(json.dumps(asdict(mutant)) for mutant in drawn())
        FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    elif words[:1] == ["run"]:
        listed = [Mutant(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
        chosen = [int(word) for word in words[1:]] or range(len(listed))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            root = Path(folder) / "cook"
            left = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
            shutil.copytree(ROOT, root, ignore=left, symlinks=True)
            for number in chosen:
                mutant = listed[number]
                place = f"{mutant.file}:{mutant.line}"
                print(f"{number}\t{outcome(mutant, root)}\t{place}\t{mutant.after}", flush=True)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
