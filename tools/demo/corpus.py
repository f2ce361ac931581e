"""The training text: Python source of permissively licensed packages.

Wheels are read, never imported. A package is used only if it is on the
allow-list below and its own metadata names the licence written there.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# name -> (SPDX licence of the Python code, text that its METADATA must contain, kB of code
# taken, kB of tests taken)
PACKAGES: dict[str, tuple[str, str, int, int]] = {
    "networkx": ("BSD-3-Clause", "BSD-3-Clause", 2600, 500),
    "scikit_learn": ("BSD-3-Clause", "BSD-3-Clause", 900, 0),
    "numpy": ("BSD-3-Clause", "BSD-3-Clause", 600, 0),
    "more_itertools": ("MIT", "MIT", 160, 0),
    "toolz": ("BSD-3-Clause", "BSD", 100, 60),
    "boltons": ("BSD-3-Clause", "BSD", 250, 0),
    "click": ("BSD-3-Clause", "BSD-3-Clause", 250, 0),
    "flask": ("BSD-3-Clause", "BSD-3-Clause", 200, 0),
    "werkzeug": ("BSD-3-Clause", "BSD-3-Clause", 250, 0),
    "jinja2": ("BSD-3-Clause", "BSD License", 200, 0),
    "httpx": ("BSD-3-Clause", "BSD-3-Clause", 150, 0),
    "requests": ("Apache-2.0", "Apache-2.0", 150, 0),
    "rich": ("MIT", "MIT", 200, 0),
    "attrs": ("MIT", "MIT", 120, 0),
    "pytest": ("MIT", "MIT", 250, 0),
    "typer": ("MIT", "MIT", 120, 0),
    "pydantic": ("MIT", "MIT", 200, 0),
}
STDLIB_KB = 900
# Most steps train on these alone: a narrow domain is learnt from few tokens.
FOCUS = ("networkx", "toolz", "more_itertools", "boltons")
STDLIB = """\
argparse ast bisect calendar cmd code collections/__init__ colorsys configparser
contextlib copy csv dataclasses datetime difflib dis enum filecmp fileinput fnmatch fractions
functools getopt glob gzip heapq inspect ipaddress json/decoder json/encoder json/scanner
keyword linecache locale logging/__init__ logging/handlers mailbox numbers operator optparse
os pathlib pickle pickletools platform plistlib posixpath pprint queue random reprlib sched
selectors shelve shlex shutil signal smtplib socket socketserver statistics string stringprep
subprocess symtable tarfile tempfile textwrap threading timeit token tokenize trace traceback
types typing unittest/case unittest/mock unittest/loader urllib/parse urllib/request uuid
wave weakref webbrowser xmlrpc/client zipapp zipfile zoneinfo/_common"""
_SKIP = (
    "/_vendor/",
    "/externals/",
    "/vendored/",
    "/_external/",
    "/_generated",
    "/locale",
    "/deprecated/",
    "_pb2.py",
    "/_array_api",
    "/array_api_",
)


@dataclass(frozen=True)
class Module:
    """One source file: where it came from, and its text."""

    package: str
    path: str
    text: str

    @property
    def is_test(self) -> bool:
        return "/tests/" in self.path or "/test_" in self.path


@dataclass(frozen=True)
class Source:
    """One entry of the list that NOTICE and provenance.json show."""

    package: str
    version: str
    licence: str
    file: str
    sha256: str


def read_wheels(folder: Path, rng: random.Random) -> tuple[list[Source], list[Module]]:
    """All modules of the allow-listed wheels in `folder` and of the running stdlib."""
    sources: list[Source] = []
    modules: list[Module] = []
    for wheel in sorted(folder.glob("*.whl")):
        package, version = wheel.name.split("-")[:2]
        if package not in PACKAGES:
            continue
        licence, proof, code_kb, tests_kb = PACKAGES[package]
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(archive.namelist())
            metadata = next(n for n in names if n.endswith(".dist-info/METADATA"))
            if proof not in archive.read(metadata).decode("utf-8"):
                raise ValueError(f"{wheel.name}: its metadata does not say {proof!r}")
            python = [
                Module(package, name, archive.read(name).decode("utf-8"))
                for name in names
                if name.endswith(".py") and not any(s in f"/{name}" for s in _SKIP)
            ]
        modules += _sample([m for m in python if not m.is_test], code_kb, rng)
        modules += _sample([m for m in python if m.is_test], tests_kb, rng)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        sources.append(Source(package, version, licence, wheel.name, digest))
    found = {source.package for source in sources}
    if missing := set(PACKAGES) - found:
        raise ValueError(f"wheels missing in {folder}: {', '.join(sorted(missing))}")
    stdlib, digest = _read_stdlib()
    version = ".".join(map(str, sys.version_info[:3]))
    sources.append(Source("cpython", version, "PSF-2.0", "Lib/ (the modules listed)", digest))
    return sources, modules + _sample(stdlib, STDLIB_KB, rng)


def _sample(modules: list[Module], kilobytes: int, rng: random.Random) -> list[Module]:
    """Modules in random order until they make `kilobytes`; very long ones are left out."""
    taken: list[Module] = []
    left = kilobytes * 1000
    for module in rng.sample(modules, len(modules)):
        if len(module.text) < 120_000 and len(module.text) <= left:
            taken.append(module)
            left -= len(module.text)
    return taken


def _read_stdlib() -> tuple[list[Module], str]:
    root = Path(ast.__file__).parent
    digest = hashlib.sha256()
    modules = []
    for name in STDLIB.split():
        path = root / f"{name}.py"
        if not path.exists():
            path = root / name / "__init__.py"
        raw = path.read_bytes()
        digest.update(raw)
        modules.append(Module("cpython", f"Lib/{name}.py", raw.decode("utf-8")))
    return modules, digest.hexdigest()


def normalise(text: str) -> str | None:
    """Plain ASCII with spaces and single blank lines; None if it cannot be."""
    if not text.isascii():
        text = text.translate({0x2019: "'", 0x2018: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-"})
        if not text.isascii():
            return None
    lines = [line.rstrip() for line in text.expandtabs(8).split("\n")]
    if any(len(line) > 120 for line in lines):
        return None
    kept = [a for a, b in zip(lines, [*lines[1:], "x"], strict=True) if a or b]
    return "\n".join(kept).strip("\n") + "\n"


def split_module(module: Module) -> Iterator[str]:
    """Its top-level functions and classes, and the methods of long classes, as documents."""
    try:
        tree = ast.parse(module.text)
    except SyntaxError:
        return
    lines = module.text.split("\n")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _split_node(node, lines)


def _split_node(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> Iterator[str]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    part = lines[first - 1 : node.end_lineno]
    indent = len(part[0]) - len(part[0].lstrip())
    text = "\n".join(line[indent:] if not line[:indent].strip() else line for line in part)
    if len(text) > 5000 and isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.FunctionDef):
                yield from _split_node(child, lines)
    elif 150 <= len(text) <= 6000:
        yield text


def documents(modules: list[Module], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Package and text: a third of the modules as they stand, the rest taken apart."""
    for module in modules:
        clean = normalise(module.text)
        if clean is None:
            continue
        if rng.random() < 0.35:
            yield from ((module.package, text) for text in _chunks(clean, 12_000))
            continue
        for piece in split_module(Module(module.package, module.path, clean)):
            if rng.random() < 0.10 and len(piece) < 1500:
                yield module.package, rewriting(piece, rng)
            else:
                yield module.package, normalise(piece) or ""


def _digits(text: str) -> float:
    """Share of digits: tables of numbers are noise to so small a model."""
    return sum(map(str.isdigit, text)) / len(text)


def rewriting(code: str, rng: random.Random) -> str:
    """A copy task of our own wording: the same code again, some with a name changed."""
    code = code.strip("\n") + "\n"
    change = renaming(code, rng) if rng.random() < 0.5 else None
    if change:
        old, new = change
        title = f"# The same code with {old} renamed to {new}:"
        return f"# Original:\n{code}\n{title}\n{code.replace(old, new)}"
    return f"# Original:\n{code}\n# The same code again:\n{code}"


def renaming(code: str, rng: random.Random) -> tuple[str, str] | None:
    """An argument's name in `code` and another to put in its place."""
    names = sorted({name for name in _names(code) if len(name) > 3})
    if not names:
        return None
    words = ("value", "items", "result", "data", "node", "key", "text", "total")
    return rng.choice(names), rng.choice(words)


def _names(code: str) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg


def _chunks(text: str, size: int) -> Iterator[str]:
    """Pieces of at most about `size` characters, cut at top-level definitions."""
    start = 0
    while len(text) - start > size:
        cut = text.rfind("\n\n", start + size // 2, start + size)
        cut = start + size if cut < 0 else cut + 1
        yield text[start:cut].strip("\n") + "\n"
        start = cut
    if len(text) - start > 200:
        yield text[start:].strip("\n") + "\n"


def build(wheels: Path, work: Path, rng: random.Random) -> dict[str, int]:
    """Writes `documents.json` (train, evaluation, prompts: disjoint modules) and sources."""
    sources, modules = read_wheels(wheels, rng)
    code = [m for m in modules if 3_000 < len(m.text) < 25_000 and normalise(m.text)]
    held = rng.sample(code, 60)
    parts = {"evaluation": held[:14], "prompts": held[14:]}
    kept = {m.path for m in held}
    parts["train"] = [m for m in modules if m.path not in kept]
    tagged = {part: list(documents(found, rng)) for part, found in parts.items()}
    rng.shuffle(tagged["train"])
    tagged["focus"] = [pair for pair in tagged["train"] if pair[0] in FOCUS]
    tagged["focus"] = [pair for pair in tagged["focus"] if _digits(pair[1]) < 0.035]
    short = [pair for pair in tagged["focus"] if len(pair[1]) < 1500]
    again = [(package, rewriting(text, rng)) for package, text in rng.sample(short, 150)]
    tagged["focus"] += again
    rng.shuffle(tagged["focus"])
    tagged["evaluation"].sort(key=lambda pair: pair[0] not in FOCUS)
    texts = {part: [text for _, text in found] for part, found in tagged.items()}
    work.mkdir(parents=True, exist_ok=True)
    (work / "documents.json").write_text(json.dumps(texts), encoding="utf-8")
    held_modules = [
        {"package": m.package, "path": m.path, "text": normalise(m.text)} for m in parts["prompts"]
    ]
    (work / "held-out.json").write_text(json.dumps(held_modules), encoding="utf-8")
    listed = [asdict(source) for source in sources]
    (work / "sources.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    return {part: sum(map(len, found)) for part, found in texts.items()}
