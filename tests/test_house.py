"""The plan of the house: which room may import which and how large it may be, no circles, and what
is tested by what.

The rooms and what lives in each: docs/internals/architecture.md. Every import counts: at the top,
inside functions, and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import cook

ROOT = Path(cook.__file__).parent
ROOMS = {
    "__main__": 12,
    "cli": 2_746,
    "nightly": 1_669,
    "service": 350,
    "inspection": 345,
    "score_url": 228,
    "search": 1_961,
    "job": 6_107,
    "hub": 1_538,
    "logs": 1_237,
    "report": 3_931,
    "steps": 4_514,
    "scoring": 3_404,
    "record": 1_433,
    "recipe": 6_131,
    "trace": 1_187,
    "graph": 2_130,
    "engine_setup": 290,
    "engines": 5_931,
    "config": 134,
    "prompts": 478,
    "demo": 250,
    "documents": 641,
    "formats": 3_661,
    "output": 453,
    "text_table": 147,
    "provenance": 96,
    "files": 372,
    "paths": 48,
    "units": 57,
    "closing": 20,
    "signals": 84,
    "removed": 59,
    "errors": 115,
}
"""Room -> the most lines of Python it may have. From the top down: a room imports only rooms below
itself. Raising a number is a line in the commit that says what was removed for it."""
HEADS = {
    "cli": 7,
    "service": 28,
    "search": 2,
    "job": 345,
    "steps": 1_019,
    "scoring": 20,
    "recipe": 220,
    "engines": 247,
    "formats": 197,
    "demo": 20,
}
"""The same that draft heads add to a room; in all at most :data:`MOST_HEAD_LINES`."""
MOST_HEAD_LINES, MOST_HEAD_C_LINES = 3_000, 700
MOST_OTHER_LINES = 3_000
"""Of C, templates and tables in cook/, which stand in for Python."""
MOST_BENCH_LINES = 1_800
WAY = {
    "cook.scoring.simulate": "a replay's arrays become steps of the engine's loop",
    "cook.scoring.price": "steps become requests with their times",
    "cook.job.forecast": "one forecast of every candidate",
    "cook.scoring.compare": "requests become ratios of sums, forecast and live ones standings",
    "cook.job.decide": "who is dealt a block, and forecasts, blocks and standings a decision",
    "cook.job.sentence": "the decision becomes candidates, the pick and its sentence",
}
"""From a replay's arrays to the pick sentence, in this order: what is handed on in between is of
these modules' types, or of the record's (`PromptRun`, `Figures`, `Candidate`, `Pick`)."""
BESIDE_THE_WAY = {
    "cook.job.count_accuracy": "how far counts differ between shapes of a batch",
    "cook.job.layout": "which steps run",
    "cook.scoring.batch_curve": "what a step takes, as timed or typed",
    "cook.scoring.ngram": "n-grams draft from the trace alone: there is no replay of them",
}
"""What the way looks up, each with what it says: no figure of a replay passes through these."""
WAY_LINES, WAY_TYPES = 2_000, 13
OTHER_SUFFIXES = (".c", ".h", ".cmake", ".css", ".html", ".jinja", ".mplstyle", ".tsv")
ANYONE = {"cook", "cook.errors"}
TESTS = Path(__file__).parent
_COMMAND = "imported by the command's name; tests/cli/test_habits.py gives every command"
UNIMPORTED = {
    "cook.__main__": "run as `python -m cook` by tests/cli/test_habits.py",
    "cook.cli.build": _COMMAND,
    "cook.cli.demo": _COMMAND,
    "cook.cli.doctor": _COMMAND,
    "cook.cli.inspect": _COMMAND,
    "cook.cli.logs": _COMMAND,
    "cook.cli.plan": _COMMAND,
    "cook.cli.predict": _COMMAND,
    "cook.cli.publish": _COMMAND,
    "cook.cli.recipes": _COMMAND,
    "cook.cli.run": _COMMAND,
    "cook.cli.report": _COMMAND,
    "cook.cli.score": _COMMAND,
    "cook.cli.search": _COMMAND,
    "cook.cli.serve": _COMMAND,
    "cook.cli.store": _COMMAND,
    "cook.cli.sweep": _COMMAND,
    "cook.cli.trace": _COMMAND,
    "cook.closing": "an interface; what closes is tested where it does",
    "cook.documents.located": "tests/recipe/test_load.py: it reports every fault of a recipe",
    "cook.documents.spec": "the base of recipes, pipelines and configuration, tested as those",
}
"""Modules that no test file without an engine imports, each with the reason."""
ACROSS = {
    "cli/test_broken.py": "broken input to any command",
    "cli/test_habits.py": "what every command owes its user",
    "cli/test_unsafe_args.py": "a stranger's recipe, from its text to the engine's command",
    "demo/test_files.py": "the demo's files, which are no modules",
    "engines/test_faults.py": "injected faults, through every part of an engine",
    "engines/test_real_tools.py": "the real tools, through every part of an engine",
    "engines/test_types.py": "every type of the real tools, through several rooms",
    "recipe/test_shipped.py": "the shipped recipes, which are no modules",
    "report/test_browser.py": "whole pages in a real browser",
    "test_demo_plan.py": "the shipped demo's plan",
    "test_docs.py": "the documentation",
    "job/test_heads.py": "heads as candidates, from their headers to the pick",
    "test_giant.py": "a source of 2 TB, through a plan and an inspection",
    "test_house.py": "this file",
    "test_ik_build.py": "a whole build on ik_llama.cpp",
    "test_kept_records.py": "documents of real runs",
    "test_rot.py": "a build whose stored files rot",
    "test_step_keys.py": "the keys of all Steps",
    "test_tutorial.py": "the tutorial's commands",
    "test_wheel.py": "the installed package",
}
"""Test files named after what they hold together, not after a module."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("cook", *path.relative_to(ROOT).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: Collection[str]) -> set[str]:
    """Those of ``known`` modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: a relative import"
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(w if w in known else node.module for w in wanted)
    return found & set(known)


def imports() -> dict[str, set[str]]:
    """Every module of cook with those that it imports."""
    known = modules()
    return {name: imported(path, known) - {name} for name, path in known.items()}


def room(module: str) -> str:
    return module.split(".")[1]


def test_imports_point_down() -> None:
    order = list(ROOMS)
    assert set(order) == {room(name) for name in modules() if name != "cook"}
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if not {name, other} & ANYONE and order.index(room(other)) < order.index(room(name))
    ]
    assert wrong == []


def test_no_module_is_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_room_outgrows_its_number_of_lines() -> None:
    sizes: Counter[str] = Counter()
    for name, path in modules().items():
        if name != "cook":
            sizes[room(name)] += lines(path)
    grown = {
        name: f"{size}, at most {most}"
        for name, size in sizes.items()
        if size > (most := ROOMS[name] + HEADS.get(name, 0))
    }
    assert grown == {}
    assert sum(HEADS.values()) <= MOST_HEAD_LINES
    others = [path for path in ROOT.rglob("*") if path.suffix in OTHER_SUFFIXES]
    of_heads = [path for path in others if "head" in path.name]
    assert sum(map(lines, others)) - sum(map(lines, of_heads)) <= MOST_OTHER_LINES
    assert sum(map(lines, of_heads)) <= MOST_HEAD_C_LINES
    assert sum(map(lines, (TESTS.parent / "bench").glob("*.py"))) <= MOST_BENCH_LINES


def test_the_way_from_a_replay_to_the_pick_is_short() -> None:
    """Six modules that import one another, and none that lies between them."""
    known, edges = modules(), imports()
    way = list(WAY)
    assert len(way) <= 6
    assert sum(lines(known[name]) for name in way) <= WAY_LINES
    types = [
        node.name
        for name in way
        for node in ast.parse(known[name].read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(types) <= WAY_TYPES
    linked = {name for one in way for name in (one, *edges[one]) if edges[one] & set(way)}
    assert set(way) <= linked, "each imports another of them, or is imported by one"
    between = {
        name
        for name in set().union(*(edges[one] for one in way)) - set(way)
        if room(name) in ("job", "scoring") and edges[name] & set(way)
    }
    assert between == set(BESIDE_THE_WAY)


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
    allowed = [
        "report",
        "record",
        "scoring",
        "formats",
        "output",
        "units",
        "paths",
        "files",
        "errors",
    ]
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


def needs_an_engine(path: Path) -> bool:
    """Whether a test file is marked as a whole: it runs only where an engine is built."""
    marks = {"pytest.mark.engine", "pytest.mark.ik"}
    return any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and marks & {ast.unparse(inner) for inner in ast.walk(node.value)}
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def test_every_module_is_tested_where_no_engine_is_built() -> None:
    """Imported by a test file that is not marked as a whole, or by what that file imports here."""
    known = modules()
    here = {
        ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)): path
        for path in TESTS.rglob("*.py")
    }
    files = [
        path
        for path in here.values()
        if path.name.startswith(("test_", "conftest")) and not needs_an_engine(path)
    ]
    read: set[Path] = set()
    tested: set[str] = set()
    while files:
        path = files.pop()
        if path not in read:
            read.add(path)
            tested |= imported(path, known)
            files += [here[name] for name in imported(path, here)]
    holding_code = {name for name, path in known.items() if path.name != "__init__.py"}
    assert holding_code - tested == set(UNIMPORTED)


def test_a_test_file_is_named_after_what_it_tests() -> None:
    """``test_X.py`` or ``test_X_more.py`` of the room of ``X.py``, or listed."""
    stems = {
        (path.parent.relative_to(ROOT), path.stem)
        for name, path in modules().items()
        if path.name != "__init__.py"
    }
    stray = []
    for path in TESTS.rglob("test_*.py"):
        folder, words = path.parent.relative_to(TESTS), path.stem.split("_")[1:]
        names = {(folder, "_".join(words[:n])) for n in range(1, len(words) + 1)}
        if (ROOT / folder).is_dir() and not names & stems:
            stray.append(str(path.relative_to(TESTS)))
    assert sorted(stray) == sorted(ACROSS)


def test_no_folder_of_tests_is_left_out(request: pytest.FixtureRequest) -> None:
    """pytest's own list leaves out some names of folders, such as `build`."""
    left_out: list[str] = request.config.getini("norecursedirs")
    files = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    assert len(files) > 200
    missed = [f for f in files for part in f.parts if any(fnmatch(part, p) for p in left_out)]
    assert missed == []
