from __future__ import annotations

import random

import pytest

from tools.demo.corpus import Module, documents, normalise, renaming, rewriting, split_module

CODE = '''\
def degree(graph, node):
    """The number of edges at `node`, as a whole number and never a fraction of one."""
    neighbours = graph[node]
    if node in neighbours:
        return len(neighbours) + 1
    return len(neighbours)
'''


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("a  \n\n\n\nb\t\n", "a\n\nb\n"),
        ("it\u2019s", "it's\n"),
        ("\u4f60", None),
        ("x" * 121, None),
    ],
)
def test_normalise_keeps_plain_text_and_single_blank_lines(text: str, normal: str | None) -> None:
    assert normalise(text) == normal


def test_methods_of_long_classes_become_documents_of_their_own() -> None:
    method = "".join(f"    {line}\n" for line in CODE.splitlines())
    text = "class Long:\n" + "    x = 1\n" * 600 + method
    assert list(split_module(Module("p", "p.py", text))) == [CODE.rstrip("\n")]


def test_rewriting_repeats_the_code_or_renames_in_it() -> None:
    for seed in range(20):
        text = rewriting(CODE, random.Random(seed))
        assert text.startswith(f"# Original:\n{CODE}\n# The same code ")
        assert text.count("def degree(") == 2


def test_renaming_picks_an_argument() -> None:
    change = renaming(CODE, random.Random(0))
    assert change is not None
    assert change[0] in {"graph", "node"}
    assert renaming("def f(): pass\n", random.Random(0)) is None


def test_documents_are_the_same_for_the_same_seed() -> None:
    modules = [Module("p", f"p{i}.py", CODE * 3) for i in range(10)]
    first = list(documents(modules, random.Random(3)))
    assert first == list(documents(modules, random.Random(3)))
    assert {package for package, _ in first} == {"p"}
