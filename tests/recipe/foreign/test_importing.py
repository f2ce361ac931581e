"""Import: every sample of the field gives each tensor the type that the original gives it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.tool_output import parse_quantize_log
from cook.errors import InputError, RecipeError
from cook.formats.gguf import TensorInfo, read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name
from cook.paths import demo_dir
from cook.recipe.foreign import Format
from cook.recipe.foreign.exporting import export_quant
from cook.recipe.foreign.importing import (
    Imported,
    format_of,
    group_rules,
    import_recipe,
    read_quants,
)
from cook.recipe.foreign.quants import Notes, selector_of
from cook.recipe.foreign.text import read_foreign
from cook.recipe.lint import flavour_of
from cook.recipe.load import LoadedRecipe, parse_recipe
from cook.recipe.rules import ModelTensors, Rule
from tests.recipe.conftest import Tensors, resolve

DATA = Path(__file__).parents[2] / "data"
LING_TSV = DATA / "ling-flash-2.0.tensors.tsv"
SCRIPTS = sorted(DATA.glob("make-quant-*.sh"))
RECIPES = sorted(DATA.glob("*.recipe"))

Reader = Callable[[Path, Tensors], dict[str, str]]


def named_in(recipe: Path) -> tuple[Tensors, dict[str, str]]:
    """The tensors that a .recipe names, layer by layer, and their types by Python's ``re``."""
    lines = (line.partition("#")[0] for line in recipe.read_text().splitlines())
    rules = [line.split("=", 1) for line in lines if line.strip()]
    names: dict[str, str] = {}
    for pattern, _ in rules:
        suffix = re.sub(r"^\^(blk\\\.(?:\([^)]*\)|[^\\]*))?", "", pattern)
        plain = suffix.replace("\\", "").removesuffix("$")
        for layer in range(100):
            name = f"blk.{layer}{plain}" if "blk" in pattern else plain
            hit = next((t for p, t in rules if re.search(p, name)), None)
            if hit is not None:
                names[name] = hit
    shapes = {
        name: (512,) if type_name == "f32" else (512, 512) for name, type_name in names.items()
    }
    return tuple(TensorInfo(n, s, by_name("f32").id) for n, s in shapes.items()), names


def types_of(loaded: LoadedRecipe, tensors: Tensors) -> dict[str, str]:
    (quant,) = loaded.quants
    found = resolve(tensors, quant, flavour_of(loaded))
    assert not [p for p in found.problems if p.severity == "error"]
    return {name: str(type_name) for name, type_name in found.types.items()}


@pytest.mark.parametrize("model", [None, LING_TSV], ids=["patterns", "groups"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_means_what_ik_reads(
    script: Path, model: Path | None, ling: Tensors, script_types: Reader
) -> None:
    found = import_recipe(script, model=model)
    assert types_of(found.loaded, ling) == script_types(script, ling)
    assert found.loaded.recipe.engine == (IK_LLAMA_CPP,)
    assert found.loaded.recipe.imatrix is not None
    assert found.loaded.quants[0].name == script.stem.removeprefix("make-quant-")
    assert found.loaded.quants[0].ftype == script.stem.split("-")[2]


def test_the_model_is_named_as_the_recipe_will_find_it(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").symlink_to(tiny_model)
    (tmp_path / "make.sh").write_text("llama-quantize in.gguf out.gguf Q4_0\n")
    for to, path in ((Path("recipes/r.yaml"), "../m.gguf"), (None, f"{tmp_path}/m.gguf")):
        found = import_recipe(Path("make.sh"), model=Path("m.gguf"), to=to)
        assert f"source: {path}" in found.text


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name.split(".")[0])
@pytest.mark.parametrize("wanted", [Format.RECIPE, Format.SCRIPT])
def test_the_round_trip_keeps_every_tensor_that_a_recipe_names(
    path: Path, wanted: Format, tmp_path: Path
) -> None:
    tensors, expected = named_in(path)
    assert len(tensors) > 300
    found = import_recipe(path)
    assert types_of(found.loaded, tensors) == expected
    text = export_quant(found.loaded, None, wanted).text
    again = imported(tmp_path, text, "back", format=wanted)
    assert types_of(again.loaded, tensors) == expected
    if wanted is Format.RECIPE:
        assert again.loaded.quants[0].ftype == found.loaded.quants[0].ftype


def test_a_tensor_type_file_goes_both_ways(ling: Tensors, tmp_path: Path) -> None:
    listed = "attn_v=Q8_0 ffn_down=q6_k\n  ^output\\.weight$=q6_K .*=q4_K"
    found = imported(tmp_path, listed, "types.txt", type="q4_k_m")
    assert found.format is Format.TENSOR_TYPE_FILE
    assert found.loaded.recipe.engine == ("llama.cpp",)
    types = types_of(found.loaded, ling)
    assert types["blk.3.ffn_down_exps.weight"] == types["output.weight"] == "q6_K"
    assert types["blk.3.attn_output.weight"] == "q4_K"
    text = export_quant(found.loaded, None, Format.TENSOR_TYPE_FILE).text
    assert types_of(imported(tmp_path, text, "back", type="Q4_K_M").loaded, ling) == types


def test_comments_stay_with_their_rules() -> None:
    text = import_recipe(DATA / "make-quant-IQ1_KT.sh").text
    assert "      # Routed Experts Layers [3-79]\n      - 'blk\\..*\\.ffn_down_exps" in text
    header = import_recipe(RECIPES[0]).text.split("version:")[0]
    assert "Link to the original model: https://huggingface.co/zai-org/GLM-4.7-Flash" in header


def test_groups_where_the_rules_say_what_they_say() -> None:
    text = import_recipe(DATA / "make-quant-IQ1_KT.sh", model=LING_TSV).text
    for rule in ("attention: iq6_k", "dense_ffn: iq5_ks", "routed_experts: iq1_kt"):
        assert f"      - {rule}\n" in text
    assert "mixture" not in text
    # The block of IQ2_KL splits attention between two types: no group says that.
    assert "- attention" not in import_recipe(SCRIPTS[2], model=LING_TSV).text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["attn", "ffn_up", "ffn", "exps", r"blk\.0\.", "output", ".*", "_k"]),
            st.sampled_from(["q8_0", "q4_K", "iq4_xs"]),
        ),
        max_size=6,
    )
)
def test_grouping_changes_no_type(pairs: list[tuple[str, str]]) -> None:
    parts = ["attn_q", "attn_k", "ffn_up", "ffn_up_exps", "ffn_down_exps", "ffn_up_shexp"]
    names = [f"blk.{i}.{part}.weight" for i in range(2) for part in parts]
    names += ["output.weight", "token_embd.weight"]
    model = ModelTensors([TensorInfo(name, (256, 256), 0) for name in names])
    rules = [Rule(selector_of(pattern), type_name) for pattern, type_name in pairs]
    written, unused, covered = group_rules(rules, model, "llama.cpp")

    def types(rules: Sequence[Rule]) -> list[str | None]:
        return [next((r.type for r in rules if name in model.hits(r)), None) for name in names]

    assert types(written) == types(rules)
    assert types([r for r in rules if not any(r is other for other in unused)]) == types(rules)
    assert covered == (None not in types(rules))


def test_what_is_not_said_is_a_warning() -> None:
    found = import_recipe(RECIPES[0])
    assert found.loaded.recipe.name == "GLM-4.7-Flash"
    assert [w.message for w in found.warnings] == ["no base type is named: Q8_0, as most rules say"]
    assert import_recipe(RECIPES[0], type="q6_k").warnings == ()


def imported(tmp_path: Path, text: str, name: str = "make.sh", **wishes: Any) -> Imported:
    (tmp_path / name).write_text(text)
    return import_recipe(tmp_path / name, **wishes)


def fails(tmp_path: Path, text: str, name: str = "make.sh") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        imported(tmp_path, text, name)
    return [f"{p.line}:{p.column}: {p.message}" for p in caught.value.problems]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("attn_v=Q8_0", "1:35: ik_llama.cpp knows no type `Q8_0`: its names are case-sensitive"),
        ("attn_v=iq9_k", "1:35: unknown quant type 'iq9_k'"),
        ("attn_v=q8_0,", "1:39: not a rule: nothing between two commas"),
        ("a{1,2}=q8_0", "1:28: not a rule: `a{1`"),
        ("attn_(v=q8_0", "1:33: bad pattern: `(` without `)` (at character 6)"),
        ("attn_v=nvfp4", "1:35: ik_llama.cpp, which reads this, has no type nvfp4"),
        ("attn_v=q8_K", "1:35: q8_K is a type of activations: no engine can write it"),
    ],
)
def test_a_faulty_rule_is_reported_at_its_place(tmp_path: Path, rules: str, message: str) -> None:
    script = f"llama-quantize --custom-q '{rules}' in.gguf out.gguf IQ4_K 4\n"
    assert fails(tmp_path, script)[0].startswith(message)


def test_a_pattern_that_hangs_is_reported(tmp_path: Path) -> None:
    pattern = "(?:(?:.{1,9}){1,9}){1,9}[A-Z]$"
    (problem,) = fails(tmp_path, f"# a\n{pattern}=q8_0\n", "x.recipe")
    assert problem.startswith(f"2:1: pattern `{pattern}` takes too long")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("llama-quantize --pure --custom-q 'a=q8_0' i o Q4_0", "ignores every rule under --pure"),
        ("llama-quantize --custom-q 'a=q8_0' i o BF16", "the engine ignores every rule"),
        ("llama-quantize --leave-output-tensor i o Q4_0", "cannot say --leave-output-tensor"),
        ("llama-quantize --model-url http://x/y.gguf i o Q4_0", "no option --model-url"),
        ("llama-quantize --override-kv a.b=str:c i o Q4_0", "cannot say --override-kv"),
        ("llama-quantize --custom-q 'a=q8_0' --tensor-type b=q8_0 i o Q4_0", "no engine has both"),
        ('llama-quantize --custom-q "$custom" i o Q4_0', "does not set $custom"),
        ("if true; then c=a=q8_0; fi\nllama-quantize --custom-q $c i o Q4_0", "inside `if`"),
        ("llama-quantize i o", "names no base type"),
        ("c='\na=q8_0\nb=q8_0\n'\nllama-quantize --custom-q \"$c\" i o Q4_0", "not joined"),
        ("llama-quantize a x Q4_0\nllama-quantize b y Q5_0", "a recipe has one source"),
        ("llama-quantize --imatrix '' i o Q4_0", "1:1: must name a file or an hf:// reference"),
    ],
)
def test_a_script_that_no_recipe_says_is_refused(tmp_path: Path, script: str, message: str) -> None:
    assert any(message in line for line in fails(tmp_path, script))


def test_two_commands_are_two_quants(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        'c="attn_v=q8_0"\nfor_all() { :; }\nSRC=m.gguf\n'
        "numactl -N 0 ./llama-quantize --custom-q $c $SRC out-a.gguf IQ4_K 4 || exit 1\n"
        'c+=",ffn_up=q6_K"\n./llama-quantize --token-embedding-type Q8_0 --output-tensor-type q6_K '
        '--custom-q "$c" ${SRC} out-b.gguf IQ4_KS `nproc`\n',
    )
    assert [q.name for q in found.loaded.quants] == ["out-a", "out-b"]
    assert [[str(r) for r in q.rules] for q in found.loaded.quants] == [
        ["attn_v: q8_0"],
        [r"^output\.weight$: q6_K", "attn_v: q8_0", "ffn_up: q6_K"],
    ]
    assert found.loaded.recipe.model is not None
    assert Path(str(found.loaded.recipe.model.source)).name == "m.gguf"
    (warning,) = found.warnings
    assert (warning.line, "ignores --token-embedding-type Q8_0" in warning.message) == (6, True)


def test_mainline_makes_patterns_lower_case(tmp_path: Path) -> None:
    found = imported(tmp_path, "llama-quantize --tensor-type 'ATTN_V=Q8_0' i.gguf o Q4_K_M")
    assert [str(rule) for rule in found.loaded.quants[0].rules] == ["attn_v: q8_0"]
    assert "lower-case" in found.warnings[0].message


def test_selectors_that_need_to_be_forced() -> None:
    assert selector_of("output") == "re:output"
    assert selector_of("attn") == "re:attn"  # near a group's name, so a recipe would ask
    assert selector_of("re:x") == "re:re:x"
    assert selector_of(r"attn_v\.weight") == r"attn_v\.weight"


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("x.sh", "", Format.SCRIPT),
        ("x.recipe", "", Format.RECIPE),
        ("x", 'custom="\na=q8_0\n"', Format.SCRIPT),
        ("x", "# c\na=q8_0\n", Format.RECIPE),
        ("x", "a=q8_0,b=q8_0\n", Format.CUSTOM_Q),
        ("x", "a=q8_0\nb=q8_0\n", Format.TENSOR_TYPE_FILE),
    ],
)
def test_what_a_file_is(name: str, text: str, format: Format) -> None:
    assert format_of(Path(name), text) is format


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"a\n\xff\xfe", r"make\.sh:2:1: not text in UTF-8"),
        (b"#" * ((1 << 20) + 1), "cook reads at most"),
        (b"echo nothing here\n", "no rules"),
    ],
    ids=str,
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "make.sh").write_bytes(content)
    with pytest.raises(InputError, match=message):
        import_recipe(tmp_path / "make.sh")


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab=,.\\*()[]|'\"$#`{}<>&; \n") | st.characters(), max_size=80))
def test_any_text_is_a_recipe_or_a_located_fault(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, command = Path(folder) / "any.sh", 'llama-quantize --custom-q "$custom" i.gguf o Q4_0'
        script = f'custom="a=q8_0"\n{text}\n{command}\n'.replace("\0", "")
        path.write_text(script, encoding="utf-8", errors="replace")
        found, places = None, set()
        try:
            found = import_recipe(path)
        except RecipeError as error:
            places = {problem.file for problem in error.problems}
        except InputError:
            pass
        assert places <= {str(path)}, "no fault is in what cook wrote"
        if found is None:
            return
        notes = Notes()
        (read,) = read_quants(found.format, read_foreign(path), notes)
        notes.check()
        # Rule for rule, the recipe says what was read.
        said = [str(rule) for rule in found.loaded.quants[0].rules]
        assert said == [str(rule) for rule in read.rules]
        assert parse_recipe(found.text, Path("x.yaml")).quants == found.loaded.quants


def dry_run(engine: Any, options: list[str], base: str, folder: Path) -> dict[str, str]:
    """What ``llama-quantize --dry-run`` of the engine makes of the demo's draft."""
    argv = [str(engine.tool("quantize")), "--dry-run", *options]
    argv += [str(demo_dir() / "draft-f16.gguf"), str(folder / "out.gguf"), base, "1"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=True, env=engine.environment()
    )
    types = parse_quantize_log(done.stderr + done.stdout).types
    assert types
    return types


def resolved(loaded: LoadedRecipe, flavour: str) -> dict[str, str | None]:
    draft = read_gguf(demo_dir() / "draft-f16.gguf")
    return dict(resolve(draft.tensors, loaded.quants[0], flavour, draft.architecture).types)


@pytest.mark.ik
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_ik_itself_gives_these_types(script: Path, ik_engine: Any, tmp_path: Path) -> None:
    """The script's own pipeline, run by bash, and ik's own reading of what it makes."""
    until = script.read_text().partition("./ik_llama.cpp")[0]
    bash = ["bash", "--norc", "-c", f'{until}\nprintf "%s" "$custom"']
    custom = subprocess.run(bash, capture_output=True, text=True, timeout=10, check=True).stdout
    found = import_recipe(script)
    options = ["--ignore-imatrix-rules", "--custom-q", custom]
    types = dry_run(ik_engine, options, found.loaded.quants[0].ftype, tmp_path)
    assert types == resolved(found.loaded, IK_LLAMA_CPP)


@pytest.mark.engine
def test_llama_cpp_itself_gives_these_types(bundled: Any, tmp_path: Path) -> None:
    listed = tmp_path / "types.txt"
    listed.write_text("ATTN_QKV=Q8_0\n^output\\.weight$=q6_K  ffn_down_exps=iq4_nl\n_EXPS=q4_k")
    found = import_recipe(listed, type="Q5_K_M")
    types = dry_run(bundled, ["--tensor-type-file", str(listed)], "Q5_K_M", tmp_path)
    stated = {n: t for n, t in resolved(found.loaded, LLAMA_CPP).items() if t is not None}
    assert {name: types[name] for name in stated} == stated
    # What cook writes back is read by the engine to the same end.
    back = tmp_path / "back.txt"
    back.write_text(export_quant(found.loaded, None, Format.TENSOR_TYPE_FILE).text)
    assert dry_run(bundled, ["--tensor-type-file", str(back)], "Q5_K_M", tmp_path) == types


def test_what_else_a_script_runs_is_not_taken_over(tmp_path: Path) -> None:
    others = (
        "llama-server -m in.gguf --model-url http://x/y.gguf --host 0.0.0.0",
        "LLAMA_ARG_MODEL_URL=http://x/y.gguf llama-imatrix -m in.gguf -f x --log-file /tmp/x",
        "curl http://x/y.gguf -o in.gguf",
    )
    found = imported(
        tmp_path, "\n".join([*others, "llama-quantize in.gguf out.gguf Q4_0", *others])
    )
    assert "extra" not in found.text
    assert "http" not in found.text
    assert found.loaded.recipe.engine in ((), ("llama.cpp",))
