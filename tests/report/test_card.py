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
from cook.record.record import Record, StepRecord
from cook.report.card import MARK, CardFacts, card
from cook.report.commands import script, shell

RULES = r"blk\..*\.attn_qkv.*=q8_0,blk\..*\.ffn_down_exps\.weight=iq1_kt,token_embd\.weight=q8_0"
FACTS = CardFacts(
    title="Ling",
    files={"Q8_0": ("Ling-Q8_0.gguf",), "Q4_K_M": ("Ling-Q4_K_M.gguf",)},
    base_model="inclusionAI/Ling",
    license="mit",
    imatrix="imatrix-Ling.dat",
    quantized_by="me",
)


def made(record: Record) -> Record:
    """``record`` with the commands that made its quants: one of each engine's manner."""
    first, second, _ = record.drafts
    tool = "/opt/build/bin/llama-quantize"
    source = "/models/Ling-BF16-00001-of-00002.gguf"
    outputs = ("/home/me/store/tmp/ab12/model.gguf", "/home/me/store/tmp/cd34/model.gguf")
    matrix = ("--imatrix", "/home/me/store/imatrix/77/imatrix.dat")
    return replace(
        record,
        engines={"bundled": EngineIdentity(Flavour.IK_LLAMA_CPP, "4000 (8337e4c)", None, "0" * 64)},
        steps=(
            StepRecord(
                "imatrix (ik)",
                "imatrix",
                "a" * 64,
                "ran",
                9.0,
                (
                    *("/opt/build/bin/llama-imatrix", "-m", source, "-f", "/x/calibration v1.txt"),
                    *("-o", "/home/me/store/tmp/77/imatrix.dat", "-c", "512", "-fa", "off"),
                ),
            ),
            StepRecord(
                "quantize Q8_0 (ik)",
                "quantize",
                first.key,
                "ran",
                9.0,
                (tool, *matrix, "--custom-q", RULES, source, outputs[0], "IQ1_KT", "8"),
            ),
            StepRecord(
                "quantize Q4_K_M (llama.cpp)",
                "quantize",
                second.key,
                "ran",
                9.0,
                (
                    *(tool, "--pure", "--tensor-type", r"attn_[qk]\.weight=q8_0"),
                    *(source, outputs[1], "Q4_K_M", "8"),
                ),
            ),
        ),
    )


@pytest.fixture
def record(records: ModuleType) -> Record:
    found: Record = made(records.record())
    return found


def front_matter(text: str) -> dict[str, object]:
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, flags=re.DOTALL)
    assert found
    loaded: dict[str, object] = yaml.safe_load(found[1])
    return loaded


def test_the_hub_reads_the_front_matter(record: Record) -> None:
    matter = front_matter(card(record, FACTS))
    assert matter == {
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


def test_every_figure_has_its_counts_and_settings(record: Record) -> None:
    text = card(record, FACTS)
    (row,) = [r for r in text.splitlines() if r.startswith("| Q8_0 |")]
    live = record.candidates[2].live
    assert live.acceptance_rate is not None
    assert live.acceptance_rate == record.candidates[2].predicted.figures.acceptance_rate
    assert f"{live.acceptance_rate:.1%} ({live.accepted}/{live.drafted})" in row
    assert "| 4 |" in row
    assert "| 16.2 MiB |" in row
    assert "4.0000 ± 0.0500" in row
    assert "(1.67-1.73)" in row
    assert re.search(
        r"^\| no draft \|( - \|){6} 100\.01 \| 92\.44 \| 1\.00x \| live \|", text, flags=re.M
    )
    assert re.search(r"prompts `?demo`?", text)
    assert "at most 192 tokens a reply, temperature 0" in text
    assert "IQ1_S" not in text, "only what is published is on the card"


def test_figures_of_a_replay_are_marked(record: Record) -> None:
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


def blocks(text: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)\n```", text, flags=re.DOTALL)


def ran(text: str, folder: Path, *tools: str) -> list[list[str]]:
    """What each of the ``tools`` is given when bash runs ``text``, call by call."""
    folder.mkdir(exist_ok=True)
    out = folder / "out"
    out.unlink(missing_ok=True)
    for tool in (*tools, "nproc"):
        fake = folder / tool
        record = 'printf \'%s\\0\' "${0##*/}" "$@" $\'\\n\' >> "$OUT"'
        fake.write_text("#!/bin/bash\n" + ("echo 8\n" if tool == "nproc" else f"{record}\n"))
        fake.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "OUT": str(out)}
    subprocess.run(["bash", "-c", text], check=True, env=env, cwd=folder)
    return [call.split("\0") for call in out.read_text().split("\0\n\0")[:-1]]


def test_one_script_runs_what_cook_ran(record: Record, tmp_path: Path) -> None:
    (found,) = [b for b in blocks(card(record, FACTS)) if "llama-quantize" in b]
    assert ran(found, tmp_path, "llama-quantize", "llama-imatrix") == [
        [
            *("llama-imatrix", "-m", "Ling-BF16-00001-of-00002.gguf", "-f", "calibration v1.txt"),
            *("-o", "imatrix-Ling.dat", "-c", "512", "-fa", "off"),
        ],
        [
            *("llama-quantize", "--imatrix", "imatrix-Ling.dat", "--custom-q", RULES),
            *("Ling-BF16-00001-of-00002.gguf", "Ling-Q8_0.gguf", "IQ1_KT", "8"),
        ],
        [
            *("llama-quantize", "--pure", "--tensor-type", r"attn_[qk]\.weight=q8_0"),
            *("Ling-BF16-00001-of-00002.gguf", "Ling-Q4_K_M.gguf", "Q4_K_M", "8"),
        ],
    ]
    # As on the card of the field thread: one rule a line; the source is named once.
    assert "\n" + RULES.replace(",", "\n") + "\n" in found
    assert found.count("Ling-BF16-00001-of-00002.gguf") == 1


def test_threads_are_those_of_whoever_runs_the_script() -> None:
    words = ("llama-imatrix", "-m", "x.gguf", "-t", "2", "--threads", "1")
    made = StepRecord("imatrix", "imatrix", "0", "ran", 1.0, words)
    step = StepRecord("q", "quantize", "1", "ran", 1.0, ("llama-quantize", "x", "y", "Q8_0", "2"))
    text = script("with b1", [made], [step])
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
    joined = ",".join(f"{rule}=q8_0" for rule in rules)
    argv = ("llama-quantize", "--custom-q", joined, "IN", "OUT", "Q8_0", "4")
    step = StepRecord("quantize", "quantize", "0", "ran", 1.0, argv)
    tools = ("llama-quantize", "llama-server")
    assert ran(script("a comment\nof two lines", (), [step]), folder, *tools) == [
        ["llama-quantize", "--custom-q", joined, "IN", "OUT", "Q8_0", "8"]
    ]
    assert ran(shell(["llama-server", *words]), folder, *tools) == [["llama-server", *words]]


def test_a_quant_of_fewer_experts_is_made_of_the_whole_one(record: Record) -> None:
    """Both commands are in the script; only the second one's file is published."""
    quantized = record.steps[1]
    folder = f"/home/me/store/quantize/{quantized.key}"
    reduced = StepRecord(
        "reduce Q8_0 experts=4",
        "reduce",
        "b" * 64,
        "ran",
        0.1,
        (
            *("llama-quantize", "--override-kv", "bailingmoe2.expert_used_count=int:4"),
            *(f"{folder}/model.gguf", "/home/me/store/tmp/ef56/model.gguf", "COPY", "1"),
        ),
    )
    first, *rest = record.drafts
    fewer = replace(first, quant="Q8_0 experts=4", key=reduced.key, path="/home/me/x/model.gguf")
    record = replace(record, drafts=(fewer, *rest), steps=(*record.steps, reduced))
    facts = replace(FACTS, files={"Q8_0 experts=4": ("Ling-Q8_0-experts-4.gguf",)})
    text = card(record, facts)
    making = text[text.index("Secret recipe") :]
    assert making.count("llama-quantize") == 2
    assert "Ling-Q8_0.gguf" in making
    assert "expert_used_count=int:4" in making
    assert "Ling-Q8_0-experts-4.gguf" in making
    assert making.index("IQ1_KT") < making.index("COPY")
    assert "/home/me" not in text
    assert "imatrix" in text[: text.index("# Ling")], "its tag"
