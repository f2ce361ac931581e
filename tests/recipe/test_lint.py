"""Findings before anything runs, each at its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.errors import PrerequisiteError, Problem, RecipeError
from cook.formats.gguf import TensorInfo
from cook.formats.imatrix_file import Imatrix, ImatrixEntry
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.lint import flavour_of, lint, raise_problems
from cook.recipe.load import LoadedRecipe, load_recipe, parse_recipe
from cook.recipe.rules import ModelTensors

Make = Callable[[str], LoadedRecipe]
Tensors = tuple[TensorInfo, ...]
CORPUS = "imatrix: {corpus: demo://data/calibration.txt}\n"


def told(problems: tuple[Problem, ...]) -> list[str]:
    return [f"{p.line}:{p.column}: {p.severity}: {p.message}" for p in problems]


def test_a_type_the_engine_lacks_names_the_engine_that_has_it(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: IQ1_KT, rules: [{attention: iq6_k}, {output: q8_0}]}]\n" + CORPUS
    )
    problems = lint(loaded, flavour=LLAMA_CPP, engine_name="bundled", check_files=False)
    assert told(problems) == [
        "4:17: error: `bundled` (llama.cpp) has no base type IQ1_KT; ik_llama.cpp has it",
        "4:43: error: `bundled` (llama.cpp) has no iq6_k; ik_llama.cpp has it",
    ]
    assert {p.kind for p in problems} == {"prerequisite"}
    with pytest.raises(PrerequisiteError) as caught:
        raise_problems(problems)
    assert caught.value.exit_code == 5
    assert "--engine ik=" in (caught.value.hint or "")


def test_a_type_that_an_old_build_lacks(recipe: Make) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0, rules: [{output: nvfp4}]}]\n")
    old: Any = SimpleNamespace(types={"q8_0": 8}, ftypes=("Q8_0",), flags={})
    (problem,) = lint(loaded, flavour=LLAMA_CPP, facts=old, check_files=False)
    assert problem.kind == "prerequisite"
    assert problem.hint == "this build is older than nvfp4: update it"


def test_a_recipe_for_the_other_engine(recipe: Make) -> None:
    loaded = recipe("engine: ik_llama.cpp\nquants: [{name: A, type: Q8_0}]\n")
    (problem,) = lint(loaded, flavour=LLAMA_CPP, engine_name="mine", check_files=False)
    assert problem.message == "the recipe needs ik_llama.cpp; `mine` is llama.cpp"
    assert problem.kind == "prerequisite"
    assert lint(loaded, flavour=IK_LLAMA_CPP, check_files=False) == ()


def test_faults_of_the_recipe_go_before_prerequisites(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: IQ1_KT}, {name: B, type: F16, rules: [{mtp: f32}]}]\n"
    )
    problems = lint(loaded, flavour=LLAMA_CPP, check_files=False)
    with pytest.raises(RecipeError) as caught:
        raise_problems(problems)
    assert len(caught.value.problems) == 2


def test_warnings_raise_only_when_strict(recipe: Make, small: Tensors) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0, rules: [{'.*': q8_0}, {output: q8_0}]}]\n")
    problems = lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    raise_problems(problems)
    with pytest.raises(RecipeError):
        raise_problems(problems, strict=True)
    strict = lint(
        loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False, strict=True
    )
    assert {p.severity for p in strict} == {"error"}


def test_rules_that_match_nothing_or_are_shadowed(recipe: Make, small: Tensors) -> None:
    loaded = recipe(
        "quants:\n"
        "  - name: A\n"
        "    type: Q8_0\n"
        "    rules:\n"
        "      - attention: q6_K\n"
        "      - attn_q: q8_0\n"
        "      - shared_experts: q8_0\n"
        "      - ATTN_K: q8_0\n"
        "      - '.*': q8_0\n"
        "  - name: B\n"
        "    extends: A\n"
        "    rules: [{'.*': q4_0}]\n"
    )
    problems = lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    assert told(problems) == [
        "9:9: warning: rule `attn_q` is shadowed by earlier rules: `attention`",
        "10:9: warning: rule `shared_experts` matches no tensor",
        "11:9: warning: rule `ATTN_K` matches no tensor",
    ]
    assert problems[2].hint == "tensor names are lower case: `attn_k`"


def test_shadowing_by_several_rules_together(recipe: Make, small: Tensors) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, mixture: pure,"
        " rules: [{attn_q: q8_0}, {attn_k: q8_0}, {attn_output: q8_0}, {attention: q6_K}]}]\n"
    )
    (problem,) = lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    assert problem.message.endswith("`attn_q`, `attn_k`, `attn_output`")


def test_uncovered_tensors_unless_the_mixture_is_stated(recipe: Make, small: Tensors) -> None:
    body = "quants: [{name: A, type: Q4_0, rules: [{attention: q8_0}]%s}]\n"
    (problem,) = lint(
        recipe(body % ""), model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False
    )
    assert problem.severity == "warning"
    assert "no rule hits token_embd.weight, output.weight and 4 more" in problem.message
    for stated in (", mixture: pure", ", mixture: engine"):
        loaded = recipe(body % stated)
        assert not lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)


def test_rows_that_do_not_divide(recipe: Make, small: Tensors) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0, rules: [{dense_ffn: q4_K}, {'.*': q8_0}]}]\n")
    (problem,) = lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    assert (problem.line, problem.column, problem.severity) == (4, 41, "error")
    assert "would silently write q5_0" in problem.message


@pytest.mark.parametrize(
    ("flavour", "body", "line"),
    [
        (LLAMA_CPP, "{name: A, type: IQ3_XXS}", "A: IQ3_XXS needs an imatrix on llama.cpp"),
        (LLAMA_CPP, "{name: A, type: Q2_K_S}", "A: Q2_K_S needs an imatrix on llama.cpp"),
        (IK_LLAMA_CPP, "{name: A, type: IQ2_KT}", "A: IQ2_KT needs an imatrix on ik_llama.cpp"),
        (
            IK_LLAMA_CPP,
            "{name: A, type: Q8_0, rules: [{routed_experts: iq1_kt}, {'.*': q8_0}]}",
            "A: iq1_kt needs an imatrix on ik_llama.cpp "
            "(blk.1.ffn_up_exps.weight, blk.1.ffn_down_exps.weight)",
        ),
    ],
)
def test_types_that_need_an_imatrix(
    recipe: Make, small: Tensors, flavour: str, body: str, line: str
) -> None:
    without, given = recipe(f"quants: [{body}]\n"), recipe(f"quants: [{body}]\n{CORPUS}")
    found, enough = (
        list(lint(one, model=ModelTensors(small), flavour=flavour, check_files=False))
        for one in (without, given)
    )
    rows = [p for p in found if "do not divide" in p.message]
    assert [p.message for p in found if p not in rows] == [f"quant {line}"]
    assert [p.message for p in enough] == [p.message for p in rows]


def test_types_that_need_an_imatrix_are_told_without_a_model(recipe: Make) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0, rules: [{routed_experts: iq2_xs}]}]\n")
    (problem,) = lint(loaded, flavour=LLAMA_CPP, check_files=False)
    assert told((problem,)) == ["4:41: error: iq2_xs needs an imatrix on llama.cpp"]


def test_q3_needs_none_on_ik(recipe: Make, small: Tensors) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, rules: [{attention: iq3_xxs}, {'.*': q8_0}]}]\n"
    )
    assert not lint(loaded, model=ModelTensors(small), flavour=IK_LLAMA_CPP, check_files=False)
    assert lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)


@pytest.mark.parametrize("type_name", ["iq1_s", "iq2_xxs", "iq2_xs"])
def test_embeddings_that_would_abort_whatever_is_given(
    recipe: Make, small: Tensors, type_name: str
) -> None:
    rules = f"[{{embeddings: {type_name}}}, {{'.*': q8_0}}]"
    loaded = recipe(f"quants: [{{name: A, type: Q8_0, rules: {rules}}}]\n{CORPUS}")
    (problem,) = lint(loaded, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    assert "embeddings never have any (token_embd.weight)" in problem.message


def test_an_imatrix_that_lacks_the_tensor(recipe: Make, small: Tensors) -> None:
    entry = ImatrixEntry(np.ones((1, 512), np.float32), np.ones(1, np.float32))
    imatrix = Imatrix({"blk.1.ffn_up_exps.weight": entry}, (), 1, 512, "gguf")
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, rules: [{routed_experts: iq2_s}, {'.*': q8_0}]}]\n" + CORPUS
    )
    (problem,) = lint(
        loaded, model=ModelTensors(small), flavour=LLAMA_CPP, imatrix=imatrix, check_files=False
    )
    assert "the imatrix lacks (blk.1.ffn_down_exps.weight)" in problem.message


def test_a_ready_imatrix_that_has_nothing_for_some_tensors(recipe: Make, small: Tensors) -> None:
    entry = ImatrixEntry(np.ones((1, 512), np.float32), np.ones(1, np.float32))
    imatrix = Imatrix({"blk.1.ffn_up_exps.weight": entry}, (), 1, 512, "gguf")
    body = "quants: [{name: A, type: Q8_0, rules: [{routed_experts: q4_0}, {'.*': q8_0}]}%s]\n"
    one, two = (
        recipe(body % more + "imatrix: {file: i.gguf}\n")
        for more in ("", ", {name: B, extends: A, imatrix: false}")
    )
    for loaded in (one, two):
        (problem,) = lint(
            loaded, model=ModelTensors(small), flavour=LLAMA_CPP, imatrix=imatrix, check_files=False
        )
        assert problem.severity == "warning"
        assert "no data for blk.1.ffn_down_exps.weight: quantized without any" in problem.message
        assert problem.line == loaded.locations.at("imatrix", "file").line


def test_an_output_tensor_whose_importance_is_not_collected(recipe: Make, small: Tensors) -> None:
    body = "quants: [{name: A, type: Q8_0, rules: [{output: iq1_s}, {'.*': q8_0}]}]\n"
    (problem,) = lint(
        recipe(body + CORPUS), model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False
    )
    assert "the output tensor's is not collected" in problem.message
    assert problem.hint is not None
    assert "process_output: true" in problem.hint
    whole = recipe(body + "imatrix: {corpus: c.txt, process_output: true}\n")
    assert not lint(whole, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)
    ready = recipe(body + "imatrix: {file: i.gguf}\n")
    assert not lint(ready, model=ModelTensors(small), flavour=LLAMA_CPP, check_files=False)


def test_types_that_no_engine_stores(recipe: Make) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0, rules: [{output: q8_K}]}]\n")
    (problem,) = lint(loaded, check_files=False)
    assert problem.message == "q8_K is no type of stored weights: the engines abort on it"


def test_a_quantized_source(recipe: Make, tensors: Callable[..., Tensors]) -> None:
    model = ModelTensors(tensors({"blk.0.attn_q.weight": (512, 512)}, "q8_0"))
    loaded = recipe("quants: [{name: A, type: Q4_0, rules: [{'.*': q4_0}]}]\n")
    (problem,) = lint(loaded, model=model, flavour=LLAMA_CPP, check_files=False)
    assert told((problem,)) == [
        "3:17: error: the source is already quantized (blk.0.attn_q.weight)"
    ]
    allowed = parse_recipe(
        loaded.text.replace("gguf}", "gguf, allow_requantize: true}"), Path("r.yaml")
    )
    assert not lint(allowed, model=model, flavour=LLAMA_CPP, check_files=False)


def test_the_flavour_that_types_ask_for(recipe: Make) -> None:
    assert flavour_of(recipe("quants: [{name: A, type: IQ1_KT}]\n")) == IK_LLAMA_CPP
    assert flavour_of(recipe("quants: [{name: A, type: Q8_0}]\n")) == LLAMA_CPP
    assert flavour_of(load_recipe("qwen3-coder-30b-iq1kt")) == IK_LLAMA_CPP


def _with_texts(
    tmp_path: Path, calibration: str, evaluation: str, extra: str = ""
) -> tuple[Problem, ...]:
    (tmp_path / "c.txt").write_text(calibration)
    (tmp_path / "e.txt").write_text(evaluation)
    text = (
        "version: 1\nname: x\nmodel: {source: demo://draft-f16.gguf}\n"
        "quants: [{name: A, type: Q8_0}]\nimatrix: {corpus: c.txt}\nevaluate: {corpus: e.txt}\n"
    )
    return lint(parse_recipe(text + extra, tmp_path / "r.yaml"))


def _words(start: int, count: int) -> str:
    return " ".join(f"word{i}" for i in range(start, start + count))


def test_calibrating_on_the_evaluation_text(tmp_path: Path) -> None:
    (problem,) = _with_texts(tmp_path, _words(0, 5000), _words(0, 5000))
    assert told((problem,)) == ["6:20: error: the calibration text is also used for evaluation"]


def test_calibrating_on_a_part_of_the_evaluation_text(tmp_path: Path) -> None:
    (problem,) = _with_texts(tmp_path, _words(0, 9000), _words(8000, 2000))
    assert problem.severity == "error"
    assert "evaluation text shares" in problem.message


def test_other_text_is_fine(tmp_path: Path) -> None:
    assert _with_texts(tmp_path, _words(0, 5000), _words(5000, 5000)) == ()


def test_calibrating_on_the_prompts(tmp_path: Path) -> None:
    from cook.prompts.prompt_set import load_prompts

    prompts = "\n".join(p.text for p in load_prompts("default").prompts[:40])
    score = "score: {target: {source: demo://target-q8_0.gguf}}\n"
    (problem,) = _with_texts(tmp_path, prompts, _words(0, 500), score)
    assert "the scoring text shares" in problem.message
    assert problem.line == 7


def test_missing_files_are_told_with_the_place(tmp_path: Path) -> None:
    text = "version: 1\nname: x\nmodel: {source: a.gguf}\ninclude_source: true\n"
    problems = lint(parse_recipe(text, tmp_path / "r.yaml"))
    assert told(problems) == [f"3:17: error: no such file: {tmp_path / 'a.gguf'}"]
    with pytest.raises(RecipeError):
        raise_problems(problems)


def test_categories_that_the_prompts_lack(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0}]\n"
        "score:\n"
        "  target: {source: demo://target-q8_0.gguf}\n"
        "  categories: [code, chats]\n"
        "  weights: {reasonning: 2}\n"
    )
    problems = lint(loaded)
    assert told(problems) == [
        "7:22: error: the prompts have no category `chats`",
        "8:13: error: the prompts have no category `reasonning`",
    ]
    assert problems[0].hint == "did you mean `chat`?"


HEADS = (
    "quants: [{name: H, part: head, type: IQ2_XXS, rules: [{embeddings: q8_0}, {mtp: iq2_xxs}]}]\n"
)
WITH_HEAD = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight")


def head_model(make: Callable[..., Tensors], *more: str) -> ModelTensors:
    return ModelTensors(make(dict.fromkeys((*WITH_HEAD, *more), (256, 256))), "glm4moe")


def test_a_head_of_a_source_without_one(recipe: Make, tensors: Callable[..., Tensors]) -> None:
    loaded = recipe(HEADS.replace("rules", "experts: 4, prune_layers: 3, rules") + CORPUS)
    problems = lint(loaded, model=head_model(tensors), flavour=LLAMA_CPP, check_files=False)
    messages = [p.message for p in problems if p.severity == "error"]
    assert messages == [
        "quant H is a head, which is taken whole: `experts` is of models",
        "quant H is a head, which is taken whole: `prune_layers` is of models",
        "quant H: `part: head` of a source without one: it has no block with `nextn` tensors",
    ]


def test_ik_has_no_mixture_for_a_head(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: H, part: head, type: Q8_0}, {name: F, part: head, type: F16}]\n"
    )
    assert lint(loaded, flavour=LLAMA_CPP, check_files=False) == ()
    (problem,) = lint(loaded, flavour=IK_LLAMA_CPP, check_files=False)
    assert problem.message.startswith("quant H: the mixture of ik_llama.cpp is of whole models")


def test_where_a_head_has_no_imatrix(recipe: Make, tensors: Callable[..., Tensors]) -> None:
    """It is collected from the target's hidden states, on llama.cpp."""
    nextn = "blk.1.nextn.eh_proj.weight"
    whole = head_model(tensors, nextn)
    alone = ModelTensors([t for t in whole.tensors if "blk.0" not in t.name], "glm4moe")

    def hints(text: str, model: ModelTensors, flavour: str) -> list[str]:
        found = lint(recipe(text), model=model, flavour=flavour, check_files=False)
        return [p.hint or "" for p in found if "needs an imatrix" in p.message]

    assert hints(HEADS + CORPUS, whole, LLAMA_CPP) == []
    score = "score: {target: {source: t.gguf}}\n"
    assert hints(HEADS + CORPUS + score, alone, LLAMA_CPP) == []
    (hint,) = set(hints(HEADS + CORPUS, alone, LLAMA_CPP))
    assert hint.endswith("add a `score.target`, or choose another type")
    loaded = recipe(HEADS.replace("IQ2_XXS", "Q4_0").replace("iq2_xxs", "q4_0") + CORPUS)
    (problem,) = lint(loaded, model=whole, flavour=IK_LLAMA_CPP, check_files=False)
    assert problem.severity == "warning"
    assert problem.message == "quants of a head are made without it"
    (hint,) = set(hints(HEADS + CORPUS, whole, IK_LLAMA_CPP))
    assert hint.startswith("on ik_llama.cpp no imatrix of a head is collected")
    (hint,) = set(hints(HEADS, whole, LLAMA_CPP))
    assert hint.startswith("add `imatrix: {corpus: ...}`")
