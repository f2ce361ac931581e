"""Published sensitivities: as the suite writes them, and what is no such table."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.formats import sensitivity_csv
from cook.formats.sensitivity_csv import NATS_A_BIT, Sensitivities, read_sensitivities

TENSORS = "blk.0.attn_q.weight,blk.0.ffn_down.weight,output.weight"
# As models/GLM-4.7-Flash/kld_results.csv and models/Qwen3-4B-Instruct-2507/group0/kld_results.csv.
KLD = f"QTYPE,{TENSORS}\niq1_m,0.060718,0.213889,\n"
CURVE = "QTYPE,group0\nbf16,0\niq1_m,4.714440\nq4_K,0.047219\nq8_0,0.001441\n"


def write(folder: Path, text: str, name: str = "kld_results.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str, name: str = "kld_results.csv") -> Sensitivities:
    return read_sensitivities(write(folder, text, name))


def test_a_type_s_row_and_what_types_differ_by(tmp_path: Path) -> None:
    write(tmp_path / "group0", CURVE)
    found = read(tmp_path, KLD)
    assert found.metric == "kld"
    assert found.nats("blk.0.ffn_down.weight", "IQ1_M") == 0.213889
    assert found.nats("blk.0.ffn_down.weight", "q4_K") == pytest.approx(
        0.213889 * 0.047219 / 4.714440
    )
    assert found.nats("output.weight", "iq1_m") is None
    assert found.nats("token_embd.weight", "iq1_m") is None


def test_without_a_curve_the_nearest_row_in_bits_is_taken(tmp_path: Path) -> None:
    found = read(tmp_path, f"QTYPE,{TENSORS}\nq9_z,1,1,1\niq1_m,1,1,1\nq4_K,0.01,,0.02\n")
    assert found.unknown == ("q9_z",)
    assert found.nats("output.weight", "q5_K") == pytest.approx(0.02 * exp(-NATS_A_BIT))
    assert found.nats("blk.0.ffn_down.weight", "q4_K") == pytest.approx(exp(NATS_A_BIT * -2.75))
    assert found.curve == {}


def test_perplexities_are_held_against_a_baseline(tmp_path: Path) -> None:
    table = f"QTYPE,{TENSORS}\nbf16,8,8,8\niq1_m,8.8,7.2,404\n"
    found = read(tmp_path, table, "ppl_results.csv")
    assert found.metric == "perplexity"
    assert found.nats("blk.0.attn_q.weight", "iq1_m") == pytest.approx(log(1.1))
    assert found.nats("blk.0.ffn_down.weight", "iq1_m") == 0.0
    alone = read(tmp_path / "b", f"QTYPE,{TENSORS}\niq1_m,8.8,8.0,7.9\n", "ppl_results.csv")
    assert alone.nats("blk.0.attn_q.weight", "iq1_m") == pytest.approx(log(1.1))
    shares = read(tmp_path / "c", f"QTYPE,{TENSORS}\niq1_m,+10%,-1%,404%\n", "ppl_results.csv")
    assert shares.nats("blk.0.attn_q.weight", "iq1_m") == pytest.approx(log(1.1))
    assert shares.nats("output.weight", "iq1_m") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1:1: a table begins with QTYPE"),
        ("a,b\n", r":1:1: a table begins with QTYPE"),
        ("QTYPE,a.weight,a.weight\niq1_m,1,1\n", r":1:3: 'a.weight' stands there twice"),
        ("QTYPE,a.weight\niq1_m,1,2\n", r":2:1: 3 cells, and the first line has 2"),
        ("QTYPE,a.weight\niq1_m,much\n", r":2:2: 'much' is no figure"),
        ("QTYPE,a.weight\niq1_m,inf\n", r":2:2: 'inf' is no figure"),
        ("QTYPE,a.weight\niq1_m,1\n\nIQ1_M,2\n", r":4:1: iq1_m has a row already"),
        ("QTYPE,a.weight\niq1_m,404\n", r"holds no figure of a type that cook knows"),
        (CURVE, r"compares types over the whole model, and has no tensor"),
    ],
)
def test_what_is_no_table_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_files_that_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="says which figure it holds"):
        read(tmp_path, KLD, "results.csv")
    with pytest.raises(InputError, match=r":2:2: '-1' is no perplexity"):
        read(tmp_path, "QTYPE,a.weight\niq1_m,-1\n", "ppl.csv")
    with pytest.raises(InputError, match=r":3:2: shares and perplexities are mixed"):
        read(tmp_path, "QTYPE,a.weight\niq1_m,8\nq4_K,+1%\n", "ppl.csv")
    write(tmp_path / "group0", KLD)
    with pytest.raises(InputError, match="has tensors for columns"):
        read(tmp_path, KLD)


def test_a_large_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "QTYPE,a.weight\n" + "".join(f"x{n},1\n" for n in range(2000))
    with pytest.raises(InputError, match="more than 1024 types"):
        read(tmp_path, text)
    monkeypatch.setattr(sensitivity_csv, "MAX_TABLE_BYTES", 1 << 10)
    with pytest.raises(InputError, match="bytes, and cook reads at most 1024"):
        read(tmp_path, text)
