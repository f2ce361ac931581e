"""What a record's drafts tell of single tensors and groups, and what they do not."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.acceptance_csv import acceptance_table, write_acceptance_csv
from cook.errors import InputError
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import by_name
from cook.record.measured import ReplayedPrompts
from cook.record.record import Record, write_record
from tests.report import records

NAMES = ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.ffn_up.weight")
BASE = dict.fromkeys(NAMES, "q8_0")
ATTENTION = {"blk.0.attn_q.weight": "q4_0", "blk.0.attn_v.weight": "q4_0"}


def file_of(path: Path, types: dict[str, str]) -> Path:
    tensors = []
    for name, type_name in types.items():
        kind = by_name(type_name)
        data = bytes(kind.tensor_bytes((32, 2)))
        tensors.append(tensor_of(name, (32, 2), kind.id, data))
    write_gguf_file(path, {"general.architecture": encode("llama")}, tensors)
    return path


def replayed(draft: str, accepted: int, **other: Any) -> ReplayedPrompts:
    """Two prompts of 100 drafted tokens; of the second half as many are accepted."""
    two = ReplayedPrompts(
        engine="bundled",
        draft=draft,
        cache_type="f16",
        n_max=4,
        ids=("a", "b"),
        categories=("x", "x"),
        drafted=(100, 100),
        accepted=(accepted, accepted // 2),
    )
    return replace(two, **other)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def made(drafts: dict[str, tuple[dict[str, str], ReplayedPrompts]]) -> Record:
        found = []
        for index, (name, (types, _)) in enumerate(drafts.items()):
            path = file_of(tmp_path / f"{name}.gguf", types)
            size = path.stat().st_size + (1 << 20 if index == 0 else 0)
            found.append(replace(records.draft(name, index), path=str(path), file_bytes=size))
        replays = tuple(replay for _, replay in drafts.values())
        record: Record = replace(
            records.record(), drafts=tuple(found), candidates=(), replayed=replays
        )
        return record

    return made


def test_one_tensor_and_one_group(make: Any, tmp_path: Path) -> None:
    record = make(
        {
            "base": (BASE, replayed("base", 80)),
            "attn": (BASE | ATTENTION, replayed("attn", 60)),
            "attn_v": (BASE | {"blk.0.attn_v.weight": "q4_0"}, replayed("attn_v", 76)),
            "embd": (BASE | {"token_embd.weight": "q5_0"}, replayed("embd", 82)),
        }
    )
    table = acceptance_table(record)
    assert table.reference == "base"
    assert table.left_out == ()
    path = tmp_path / "acceptance_results.csv"
    write_acceptance_csv(table, path)
    with path.open() as stream:
        rows = {row["QTYPE"]: row for row in csv.DictReader(stream)}
    assert list(rows) == ["q4_0", "q5_0", "q8_0"]
    assert path.read_text().partition("\n")[0] == f"QTYPE,{','.join(NAMES[:3])}"
    # 90 of 120 accepted: a quarter is lost; the tensor's own figure beats its group's.
    assert rows["q4_0"]["blk.0.attn_q.weight"] == "0.250000"
    assert rows["q4_0"]["blk.0.attn_v.weight"] == "0.050000"
    assert rows["q4_0"]["token_embd.weight"] == "", "not measured is not 0"
    assert table.lost["q5_0"]["token_embd.weight"] == pytest.approx(-0.025)
    assert rows["q5_0"]["token_embd.weight"] == "0.000000", "no power of a negative share is real"
    assert {rows["q8_0"][name] for name in NAMES[:3]} == {"0.000000"}, "against itself"


def test_a_layer_s_up_and_gate_have_columns_alike(make: Any, tmp_path: Path) -> None:
    """quant_assign.py pairs them, layer by layer, and stops where one has more."""
    experts = {
        f"blk.{layer}.ffn_{part}_exps.weight": "q8_0"
        for layer in (1, 2)
        for part in ("down", "gate", "up")
    }
    base = BASE | experts | {"blk.1.ffn_norm.weight": "f32"}
    record = make(
        {
            "base": (base, replayed("base", 80)),
            "up": (base | {"blk.1.ffn_up_exps.weight": "q4_0"}, replayed("up", 60)),
        }
    )
    table = acceptance_table(record)
    write_acceptance_csv(table, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open() as stream:
        columns, *rows = csv.reader(stream)
    assert columns == ["QTYPE", *experts]
    for part in ("gate", "up"):
        assert sum(f"ffn_{part}_exps" in name for name in columns) == 2
    found = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    assert {name for name, cell in found["q4_0"].items() if cell} == {
        *("QTYPE", "blk.1.ffn_up_exps.weight")
    }


@pytest.mark.parametrize(
    ("types", "replay", "reason"),
    [
        (BASE | ATTENTION | {"blk.0.ffn_up.weight": "q4_0"}, replayed("other", 60), "2 groups"),
        (BASE | ATTENTION | {"blk.0.attn_q.weight": "q5_0"}, replayed("other", 60), "2 types"),
        (BASE, replayed("other", 60), "the reference's types"),
        ({**BASE, "output.weight": "q8_0"}, replayed("other", 60), "other tensors"),
        (BASE | ATTENTION, replayed("other", 60, n_max=8), "another draft length"),
        (BASE | ATTENTION, replayed("other", 60, ids=("c", "d")), "too little"),
    ],
)
def test_what_tells_nothing_is_left_out(
    make: Any, tmp_path: Path, types: dict[str, str], replay: ReplayedPrompts, reason: str
) -> None:
    record = make({"base": (BASE, replayed("base", 80)), "other": (types, replay)})
    table = acceptance_table(record, "base")
    ((name, why),) = table.left_out
    assert name == "other"
    assert reason in why
    with pytest.raises(InputError, match=f"no draft differs from base(.|\n)*{reason}"):
        write_acceptance_csv(table, tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


def test_prompts_that_only_one_replayed_do_not_count(make: Any) -> None:
    one: dict[str, Any] = {"ids": ("a",), "categories": ("x",), "drafted": (100,)}
    left = replace(replayed("attn", 60), accepted=(60,), **one)
    record = make({"base": (BASE, replayed("base", 80)), "attn": (BASE | ATTENTION, left)})
    table = acceptance_table(record)
    assert table.lost["q4_0"]["blk.0.attn_q.weight"] == pytest.approx(1 - 60 / 80)


def test_no_replay_no_draft_no_file(make: Any) -> None:
    with pytest.raises(InputError, match="no draft of this record was replayed"):
        acceptance_table(replace(records.record(), replayed=()))
    record = make({"base": (BASE, replayed("base", 80)), "attn": (BASE, replayed("attn", 60))})
    with pytest.raises(InputError, match="none: no such draft was replayed"):
        acceptance_table(record, "none")
    Path(record.drafts[1].path).unlink()
    assert acceptance_table(record).left_out == (("attn", "its file is not there any more"),)
    with pytest.raises(InputError, match="attn: its file is not there any more"):
        acceptance_table(record, "attn")


def test_the_command(make: Any, tmp_path: Path) -> None:
    record = make(
        {
            "base": (BASE, replayed("base", 80)),
            "attn": (BASE | ATTENTION, replayed("attn", 60)),
            "same": (BASE, replayed("same", 80)),
        }
    )
    write_record(record, tmp_path / "r.json")
    wanted = tmp_path / "acceptance_results.csv"
    argv = [sys.executable, "-m", "cook", "report", str(tmp_path / "r.json")]
    done = subprocess.run(
        [*argv, "--acceptance-csv", str(wanted)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(wanted)
    assert "shares of the acceptance of base that are lost; 0 is none" in done.stderr
    assert "of 2 tensors, q4_0 has 2, q8_0 has 2: quant_assign.py reads one row" in done.stderr
    assert "same tells nothing of one group: its tensors have the reference's types" in done.stderr
    assert wanted.read_text().startswith("QTYPE,blk.0.attn_q.weight,blk.0.attn_v.weight\nq4_0,0.25")
    assert not (tmp_path / "r.html").exists(), "nothing else was asked for"
