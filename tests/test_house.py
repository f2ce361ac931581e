"""The plan of the house: which room may import which, and that nothing goes in a circle.

The rooms and what lives in each: docs/internals/architecture.md. Every import counts: at the top,
inside functions, and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import cook

ROOT = Path(cook.__file__).parent
ROOMS = (
    "__main__",
    "cli",
    "nightly",
    "service",
    "inspection",
    "score_url",
    "build",
    "hub",
    "logs",
    "report",
    "steps",
    "scoring",
    "record",
    "recipe",
    "trace",
    "graph",
    "engine_setup",
    "engines",
    "config",
    "prompts",
    "demo",
    "documents",
    "formats",
    "output",
    "provenance",
    "files",
    "paths",
    "units",
    "closing",
    "errors",
)
"""From the top down: a room imports only rooms below itself."""
ANYONE = {"cook", "cook.errors"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("cook", *path.relative_to(ROOT).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


def imports() -> dict[str, set[str]]:
    """Every module of cook with those that it imports, wherever in the file."""
    known = modules()
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert not node.level, f"{path}: a relative import"
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [w if w in known else node.module for w in wanted]
            else:
                continue
            found[name].update(w for w in wanted if w in known and w != name)
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_imports_point_down() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if not {name, other} & ANYONE
        and room(name) != room(other)
        and ROOMS.index(room(other)) < ROOMS.index(room(name))
    ]
    assert wrong == []


def test_no_module_is_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_no_room_is_in_a_circle() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, others in imports().items():
        if name not in ANYONE:
            rooms[room(name)] |= {room(o) for o in others if o not in ANYONE} - {room(name)}
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_rooms_listed_are_the_rooms_there_are() -> None:
    assert set(ROOMS) == {room(name) for name in modules() if name != "cook"}


def test_a_file_name_means_one_thing() -> None:
    """A file of ``cli/`` is named after its command, and may share the name of what it shows."""
    names = Counter(
        path.name
        for name, path in modules().items()
        if path.name != "__init__.py" and not name.startswith("cook.cli.")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_graph_knows_no_word_of_quantization() -> None:
    words = ("quant", "imatrix", "draft", "perplexity", "gguf", "recipe", "candidate")
    for name, path in modules().items():
        if name.startswith("cook.graph"):
            text = path.read_text(encoding="utf-8").lower()
            assert [word for word in words if word in text] == [], path


def test_a_report_reads_records_and_nothing_else() -> None:
    allowed = (
        "report",
        "record",
        "scoring",
        "formats",
        "output",
        "units",
        "paths",
        "files",
        "errors",
    )
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        if name.startswith("cook.report")
        for other in others
        if other not in ANYONE and room(other) not in allowed
    ]
    assert wrong == []


def test_a_type_name_means_one_thing() -> None:
    """Classes and aliases that a module lends to others; one with an underscore is its own."""
    names: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names[node.name].append(module)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name[:1].isupper() and not name.isupper():
                    names[name].append(module)
    twice = {n: found for n, found in names.items() if len(found) > 1 and n[0] != "_"}
    assert twice == {}
