"""The model card: what the Hub reads of it, what people read, and what bash makes of it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.record.record import Record
from cook.report.card import MARK, CardFacts, card
from cook.report.commands import script, shell
from tests.report.records import step

RULES = r"blk\..*\.attn_qkv.*=q8_0,blk\..*\.ffn_down_exps\.weight=iq1_kt,token_embd\.weight=q8_0"
STORE = "/home/me/store"
FACTS = CardFacts(
    title="Ling",
    files={"Q8_0": ("Ling-Q8_0.gguf",), "Q4_K_M": ("Ling-Q4_K_M.gguf",)},
    base_model="inclusionAI/Ling",
    license="mit",
    imatrix="imatrix-Ling.dat",
    quantized_by="me",
)


def commands(source: str, matrix: tuple[str, str], text: str, *outputs: str) -> list[list[str]]:
    """Of an importance matrix and of two quants, one of each engine's manner; ``matrix`` as it is
    written and as it is read."""
    return [
        ["llama-imatrix", "-m", source, "-f", text, "-o", matrix[0], "-c", "512", "-fa", "off"],
        [
            *("llama-quantize", "--imatrix", matrix[1], "--custom-q", RULES),
            *(source, outputs[0], "IQ1_KT", "8"),
        ],
        [
            *("llama-quantize", "--pure", "--tensor-type", r"attn_[qk]\.weight=q8_0"),
            *(source, outputs[1], "Q4_K_M", "8"),
        ],
    ]


@pytest.fixture
def record(records: ModuleType) -> Record:
    """One with the commands that made its quants."""
    made: Record = records.record()
    ran = commands(
        "/models/Ling-BF16-00001-of-00002.gguf",
        (f"{STORE}/tmp/77/imatrix.dat", f"{STORE}/imatrix/77/imatrix.dat"),
        "/x/calibration v1.txt",
        *(f"{STORE}/tmp/{name}/model.gguf" for name in ("ab12", "cd34")),
    )
    labels = ("imatrix (ik)", "quantize Q8_0 (ik)", "quantize Q4_K_M (llama.cpp)")
    keys = ("a" * 64, made.drafts[0].key, made.drafts[1].key)
    return replace(
        made,
        engines={"bundled": EngineIdentity(Flavour.IK_LLAMA_CPP, "4000 (8337e4c)", None, "0" * 64)},
        steps=tuple(
            step(label, key, f"/opt/build/bin/{tool}", *words)
            for label, key, (tool, *words) in zip(labels, keys, ran, strict=True)
        ),
    )


def front_matter(text: str) -> dict[str, object]:
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, flags=re.DOTALL)
    assert found
    loaded: dict[str, object] = yaml.safe_load(found[1])
    return loaded


def test_the_hub_reads_the_front_matter(record: Record) -> None:
    assert front_matter(card(record, FACTS)) == {
        "quantized_by": "me",
        "pipeline_tag": "text-generation",
        "base_model": "inclusionAI/Ling",
        "base_model_relation": "quantized",
        "license": "mit",
        "library_name": "gguf",
        "tags": ["gguf", "imatrix", "ik_llama.cpp", "speculative-decoding", "cook"],
    }
    unknown = front_matter(card(record, replace(FACTS, base_model=None, license=None)))
    assert not {"base_model", "base_model_relation", "license"} & set(unknown)


def test_only_what_is_published_is_on_the_card_and_a_replay_is_marked(record: Record) -> None:
    predicted = tuple(
        replace(c, live=None, speedup=None) if c.draft == "Q8_0" else c for c in record.candidates
    )
    text = card(replace(record, candidates=predicted), FACTS)
    (row,) = [r for r in text.splitlines() if r.startswith("| Q8_0 |")]
    assert row.count("&#126;") == 1, "the count of a replay"
    columns = next(r for r in text.splitlines() if r.startswith("| quant |")).split(" | ")
    cells = dict(zip(columns, row.split(" | "), strict=True))
    assert cells["end-to-end t/s"] != "-"
    assert row.endswith("| predicted |")
    assert "IQ1_S" not in text


def test_the_warnings_of_the_record_are_on_the_card(record: Record) -> None:
    text = card(record, FACTS)
    assert "## Warnings\n\n- 4 of 20 timings were disturbed" in text
    assert "## Warnings" not in card(replace(record, warnings=(), steps=record.steps[:1]), FACTS)


def test_the_cards_of_any_record(records: ModuleType) -> None:
    for made_up in (records.bare(), records.hostile()):
        files = {d.quant: ("x.gguf",) for d in made_up.drafts}
        text = card(made_up, replace(FACTS, files=files))
        assert MARK in text
        assert front_matter(text)["pipeline_tag"] == "text-generation"
        assert ("## Pick" in text) == bool(made_up.candidates)
        outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.M | re.S)
        assert "<script" not in outside
        assert "<img" not in outside
        rows = [r for r in text.splitlines() if r.startswith("| ")]
        assert len({len(re.findall(r"(?<!\\)\|", r)) for r in rows}) <= 1


def ran(text: str, folder: Path) -> list[list[str]]:
    """What llama.cpp's tools are given when bash runs ``text``, call by call."""
    folder.mkdir(exist_ok=True)
    out = folder / "out"
    out.unlink(missing_ok=True)
    kept = 'printf \'%s\\0\' "${0##*/}" "$@" $\'\\n\' >> "$OUT"'
    for tool in ("llama-quantize", "llama-imatrix", "llama-server", "nproc"):
        fake = folder / tool
        fake.write_text(f"#!/bin/bash\n{'echo 8' if tool == 'nproc' else kept}\n")
        fake.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "OUT": str(out)}
    subprocess.run(["bash", "-c", text], check=True, env=env, cwd=folder)
    return [call.split("\0") for call in out.read_text().split("\0\n\0")[:-1]]


def test_one_script_runs_what_cook_ran(record: Record, tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)\n```", card(record, FACTS), flags=re.DOTALL)
    (found,) = [block for block in blocks if "llama-quantize" in block]
    source, matrix = "Ling-BF16-00001-of-00002.gguf", ("imatrix-Ling.dat",) * 2
    files = ("Ling-Q8_0.gguf", "Ling-Q4_K_M.gguf")
    assert ran(found, tmp_path) == commands(source, matrix, "calibration v1.txt", *files)
    # As on the card of the field thread: one rule a line; the source is named once.
    assert "\n" + RULES.replace(",", "\n") + "\n" in found
    assert found.count(source) == 1


def test_threads_are_those_of_whoever_runs_the_script() -> None:
    made = step("imatrix", "0", "llama-imatrix", "-m", "x.gguf", "-t", "2", "--threads", "1")
    text = script("with b1", [made], [step("quantize", "1", "llama-quantize", "x", "y", "Q8", "2")])
    assert text.count('"$threads"') == 3
    assert "-t 2" not in text


PATTERN = st.text(r"abz09_.*\()[]{}^$+?|'\"`!#~&;<> -", min_size=1, max_size=20).filter(
    lambda s: s.strip() == s and not s.startswith("/")
)


@settings(deadline=None)  # bash is started three times
@given(rules=st.lists(PATTERN, min_size=1, max_size=5), words=st.lists(PATTERN, max_size=4))
def test_bash_gives_back_any_words(
    tmp_path_factory: pytest.TempPathFactory, rules: list[str], words: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "words"
    argv = ["llama-quantize", "--custom-q", ",".join(f"{rule}=q8_0" for rule in rules)]
    argv += ["IN", "OUT", "Q8_0"]
    text = script("a comment\nof two lines", (), [step("quantize", "0", *argv, "4")])
    assert ran(text, folder) == [[*argv, "8"]]
    assert ran(shell(["llama-server", *words]), folder) == [["llama-server", *words]]


def test_a_quant_of_fewer_experts_is_made_of_the_whole_one(record: Record) -> None:
    """Both commands are in the script; only the second one's file is published."""
    reduced = step(
        *("reduce Q8_0 experts=4", "b" * 64),
        *("llama-quantize", "--override-kv", "bailingmoe2.expert_used_count=int:4"),
        *(f"{STORE}/quantize/{record.steps[1].key}/model.gguf", f"{STORE}/tmp/ef56/model.gguf"),
        *("COPY", "1"),
    )
    first, *rest = record.drafts
    fewer = replace(first, quant="Q8_0 experts=4", key=reduced.key, path="/home/me/x/model.gguf")
    record = replace(record, drafts=(fewer, *rest), steps=(*record.steps, reduced))
    facts = replace(FACTS, files={"Q8_0 experts=4": ("Ling-Q8_0-experts-4.gguf",)})
    text = card(record, facts)
    making = text[text.index("Secret recipe") :]
    assert making.count("llama-quantize") == 2
    for words in ("Ling-Q8_0.gguf", "expert_used_count=int:4", "Ling-Q8_0-experts-4.gguf"):
        assert words in making
    assert making.index("IQ1_KT") < making.index("COPY")
    assert "/home/me" not in text
    assert "imatrix" in text[: text.index("# Ling")], "its tag"
