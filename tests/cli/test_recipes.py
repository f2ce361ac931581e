"""``cook recipes`` on the shipped recipes and on broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from cook.recipe.load import shipped_recipes

LING = Path(__file__).resolve().parents[2] / "tests" / "data" / "ling-flash-2.0.tensors.tsv"
BROKEN = """\
version: 1
name: broken
model: {source: model.gguf}
quants:
  - {name: A, type: q4_k_n}
  - {name: A, typ: q8_0}
"""
BROKEN_SCRIPT = r"""custom="
attn_v=Q8_0
ffn_(up=q4_K
blk.*=iq5_x
"
custom=$(echo "$custom" | grep -v '^#' | sed -Ez 's:\n+:,:g;s:,$::;s:^,::')
llama-quantize --custom-q "$custom" in.gguf out.gguf IQ4_K
"""


def json_of(cook: Any, *words: str) -> Any:
    """The document that ``cook recipes`` prints."""
    done = cook("recipes", *words, "--json")
    return json.loads(done.stdout)


def test_ls_lists_what_is_shipped(cook: Any) -> None:
    recipes = json_of(cook, "ls")["recipes"]
    assert [r["name"] for r in recipes] == list(shipped_recipes())
    assert all(r["description"] and r["quants"] for r in recipes)


def test_show_prints_a_copy_that_is_the_user_s_own(cook: Any) -> None:
    done = cook("recipes", "show", "ling-flash-iq1kt")
    assert done.status == 0
    first, *rest = done.stdout.splitlines()
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads(Path(schema).read_text())["title"].startswith("cook recipe")
    shipped = shipped_recipes()["ling-flash-iq1kt"].read_text().splitlines()
    assert rest == [line for line in shipped[1:] if line != "name: ling-flash-iq1kt"]
    (cook.directory / "mine.yaml").write_text(done.stdout)
    again = json_of(cook, "show", "mine.yaml")
    assert again["recipe"]["name"] == "mine", "its records are its own"
    assert cook("recipes", "show", "mine.yaml").stdout == done.stdout, "a file of one's own as is"


def test_a_resolved_recipe_says_every_setting_and_means_the_same(cook: Any) -> None:
    done = cook("recipes", "show", "qwen3-0.6b-dense", "--resolved")
    (cook.directory / "mine.yaml").write_text(done.stdout)
    for setting in ("context: 512", "confidence: 0.95", "margin: 0.01", "live_budget:", "seed: 1"):
        assert setting in done.stdout
    again = cook("recipes", "show", "mine.yaml", "--resolved")
    strip = "name: mine\n"
    assert again.stdout.replace(strip, "").replace("# mine,", "# qwen3-0.6b-dense,") == done.stdout


def test_show_json_expands(cook: Any) -> None:
    document = json_of(cook, "show", "ling-flash-iq1kt")
    puffed = next(q for q in document["quants"] if q["name"] == "IQ1_KT-PUFFED")
    assert puffed["rules"][0] == {"attention": "q8_0"}
    assert {"routed_experts": "iq1_kt"} in puffed["rules"]


def test_check_tells_exact_sizes(cook: Any) -> None:
    shutil.copy(shipped_recipes()["ling-flash-iq1kt"], cook.directory / "ling.yaml")
    document = json_of(cook, "check", "ling.yaml", "--tensors", str(LING))
    sizes = {q["name"]: round(q["size_bytes"] / 2**20, 2) for q in document["quants"]}
    # What llama-quantize printed for them in discussion 839 (shared samples, README).
    assert sizes == {"IQ1_KT": 23266.73, "IQ1_KT-PUFFED": 24181.83, "IQ2_KL": 35498.34}
    # The recipe evaluates on a text that is the user's to fetch.
    assert [p["severity"] for p in document["problems"]].count("error") == 1
    done = cook("recipes", "check", "ling.yaml", "--tensors", str(LING))
    assert done.status == 2
    assert "no such file" in done.stderr
    assert "22.72 GiB" in done.stdout
    (cook.directory / "wiki.test.raw").write_text("some text of its own\n" * 100)
    assert cook("recipes", "check", "ling.yaml", "--tensors", str(LING)).status == 0


def test_the_places_that_the_tutorial_names_are_all_there_are(cook: Any) -> None:
    copy = cook("recipes", "show", "qwen3-0.6b-dense").stdout
    (cook.directory / "mine.yaml").write_text(copy)
    assert cook("recipes", "check", "mine.yaml").status == 0, "nothing is to be fetched first"
    tutorial = (LING.parents[2] / "docs" / "tutorial.md").read_text()
    named = ("model.source", "score.target.source", "score.target.args", "score.draft.args")
    assert all(f"`{place}`" in tutorial for place in named)
    document = json_of(cook, "show", "mine.yaml")["recipe"]
    assert document["imatrix"]["args"]["n_gpu_layers"] is None
    assert document["evaluate"]["args"]["n_gpu_layers"] is None


def test_faults_have_their_places(cook: Any, check_snapshot: Any) -> None:
    (cook.directory / "broken.yaml").write_text(BROKEN)
    (cook.directory / "make.sh").write_text(BROKEN_SCRIPT)
    check_snapshot(cook("recipes", "check", "broken.yaml"), "recipes-check-broken")
    check_snapshot(cook("recipes", "import", "make.sh"), "recipes-import-broken")
    check_snapshot(cook("recipes", "show", "ling-flash-iq1k"), "recipes-show-unknown")
    problems = json_of(cook, "check", "broken.yaml")["error"]["problems"]
    assert {p["line"] for p in problems} >= {5, 6}


def test_schema_accepts_the_shipped_recipes(cook: Any) -> None:
    import jsonschema
    import yaml

    schema = json.loads(cook("recipes", "schema").stdout)
    for path in shipped_recipes().values():
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def test_import_writes_a_recipe_that_loads(cook: Any) -> None:
    script = str(LING.parent / "make-quant-IQ1_KT.sh")
    done = cook("recipes", "import", script, "-o", "ling.yaml", "--model", str(LING))
    assert (done.status, done.stdout) == (0, ""), done.stderr
    document = json_of(cook, "show", "ling.yaml")
    assert {"routed_experts": "iq1_kt"} in document["quants"][0]["rules"]
    again = cook("recipes", "import", script, "-o", "ling.yaml")
    assert again.status == 2
    assert "--force" in again.stderr
    printed = cook("recipes", "import", script)
    assert printed.stdout.startswith("# Imported by `cook recipes import`")
    document = json_of(cook, "import", script)
    assert (document["kind"], document["text"]) == ("script", printed.stdout)


def test_export_says_no_pattern_twice(cook: Any) -> None:
    quant = ("--quant", "IQ1_KT-PUFFED", "--format", "recipe")
    text = cook("recipes", "export", "ling-flash-iq1kt", *quant).stdout
    rules = [line.partition("=")[0] for line in text.splitlines() if "=" in line]
    assert len(rules) == len(set(rules)) > 5
    assert "attn" in text
    assert "=iq6_k" not in text


def test_export_names_a_type_that_an_engine_lacks_once(cook: Any) -> None:
    (cook.directory / "r.yaml").write_text(
        "version: 1\nengine: llama.cpp\nmodel: {source: m.gguf}\n"
        "quants: [{name: A, type: iq1_kt, rules: [{attention: iq1_kt}]}]\n"
    )
    done = cook("recipes", "export", "r.yaml", "--format", "script")
    assert done.status == 2
    assert done.stderr.lower().count("which has no iq1_kt") == 1
    assert "1 error" in done.stderr


def test_export_and_back(cook: Any) -> None:
    quant = ("--quant", "IQ1_KT", "--format", "script")
    done = cook("recipes", "export", "ling-flash-iq1kt", *quant, "-o", "m.sh")
    assert done.status == 0, done.stderr
    back = cook("recipes", "import", "m.sh", "--model", str(LING))
    assert "- routed_experts: iq1_kt" in back.stdout
    refused = cook("recipes", "export", "ling-flash-iq1kt", "--format", "script")
    assert refused.status == 2
    assert "--quant IQ1_KT" in refused.stderr
