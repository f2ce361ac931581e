"""Pieces: made once and kept, by whichever cook; whole or absent whatever ends the making."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import InternalError, StepError
from cook.graph import piece as piece_module
from cook.graph.piece import FILE, Piece, Pieces
from cook.graph.store import Store
from cook.output import Mode, Output


def piece(name: str, size_bytes: int = 4) -> Piece:
    return Piece("tensor", name, {"name": name}, {"source": "sha256:aa"}, size_bytes)


def write(wanted: Piece, path: Path) -> None:
    path.write_bytes(wanted.params["name"].encode()[:1] * wanted.size_bytes)


def never(wanted: Piece, path: Path) -> None:
    raise AssertionError(f"{wanted.label} was made")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Sound at the end, and without work in progress."""
    store = Store(tmp_path)
    yield store
    assert list(store.verify()) == []
    assert [p for folder in ("tmp", "locks") for p in (tmp_path / folder).glob("*")] == []


def pieces(store: Store, repeated: set[str] | None = None) -> Pieces:
    return Pieces(store, Output(Mode.QUIET), repeated)


def test_what_was_made_once_is_found_and_made_again_where_that_is_asked(store: Store) -> None:
    a, b = piece("a"), piece("b", 7)
    first = pieces(store)
    made = first([a, b], write)
    assert [made[p.key].file(FILE).read_bytes() for p in (a, b)] == [b"aaaa", b"bbbbbbb"]
    assert first.used == first.made == {a.key, b.key}
    second = pieces(store)
    assert second([b, a], never) == {b.key: made[b.key], a.key: made[a.key]}
    assert (second.used, second.made) == ({a.key, b.key}, set())
    repeated: set[str] = set()
    third, fourth = pieces(store, repeated), pieces(store, repeated)
    third([a], write)
    fourth([a], never)
    assert (third.made, fourth.made) == ({a.key}, set())


@pytest.mark.parametrize(
    "other",
    [
        replace(piece("a"), kind="slice"),
        replace(piece("a"), version=2),
        replace(piece("a"), params={"name": "a", "type": "q8_0"}),
        replace(piece("a"), sources={"source": "sha256:bb"}),
        replace(piece("a"), sources={"model": "sha256:aa"}),
    ],
)
def test_all_that_decides_the_bytes_is_in_the_key_and_nothing_else(other: Piece) -> None:
    assert other.key != piece("a").key
    assert replace(other, label="z", size_bytes=9, made_from={"x": {}}).key == other.key


def test_what_was_made_before_a_failure_is_kept(store: Store) -> None:
    def fail_on_c(wanted: Piece, path: Path) -> None:
        write(wanted, path)
        if wanted.label == "c":
            raise StepError("the disk is full")

    some = [piece(name) for name in "abcd"]
    with pytest.raises(StepError):
        pieces(store)(some, fail_on_c)
    assert sorted(a.label for a in store.entries()) == ["a", "b"]
    again = pieces(store)
    again(some, write)
    assert again.made == {some[2].key, some[3].key}


def test_a_part_of_another_size_than_stated_is_refused(store: Store) -> None:
    with pytest.raises(InternalError, match="4 bytes were made, not 5"):
        pieces(store)([piece("a", 5)], lambda wanted, path: write(piece("a"), path))
    assert list(store.entries()) == []


def test_what_is_damaged_is_made_again(store: Store) -> None:
    a = piece("a")
    file = pieces(store)([a], write)[a.key].file(FILE)
    file.write_bytes(b"zz")
    (fault,) = store.verify()
    assert fault.path == file
    again = pieces(store)
    again([a], write)
    assert again.made == {a.key}
    assert file.read_bytes() == b"aaaa"


def test_two_cooks_at_once_make_each_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits at a piece that the other makes, and goes on with the rest meanwhile; there are
    more than one batch of them."""
    monkeypatch.setattr(piece_module, "BATCH", 2)
    both = threading.Barrier(2, timeout=30)
    made: list[str] = []

    def slow(first: str) -> Callable[[Piece, Path], None]:
        def make(wanted: Piece, path: Path) -> None:
            if wanted.label == first:
                both.wait()
            made.append(wanted.label)
            write(wanted, path)

        return make

    def cook(order: str) -> int:
        some = [piece(name) for name in order]
        return len(pieces(Store(store.root))(some, slow(order[0])))

    with ThreadPoolExecutor() as cooks:
        assert list(cooks.map(cook, ("abcdef", "fedcba"))) == [6, 6]
    assert sorted(made) == list("abcdef")
