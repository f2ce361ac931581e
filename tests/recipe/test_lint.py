"""Findings before anything runs, each at its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.errors import PrerequisiteError, Problem, RecipeError
from cook.formats.imatrix_file import Imatrix, ImatrixEntry
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.prompts.prompt_set import load_prompts
from cook.recipe.lint import flavour_of, lint, raise_problems
from cook.recipe.load import LoadedRecipe, load_recipe, parse_recipe
from cook.recipe.rules import ModelTensors
from tests.recipe.conftest import HEAD, Tensors

Make = Callable[[str], LoadedRecipe]
CORPUS = "imatrix: {corpus: demo://data/calibration.txt}\n"
READY = "imatrix: {file: i.gguf}\n"
ENTRY = ImatrixEntry(np.ones((1, 512), np.float32), np.ones(1, np.float32))
PART_OF_IT = Imatrix({"blk.1.ffn_up_exps.weight": ENTRY}, (), 1, 512, "gguf")


def one(rules: str, keys: str = "type: Q8_0", more: str = "") -> LoadedRecipe:
    """A recipe with the quant A on line 4; ``more`` are the lines after it."""
    return parse_recipe(f"{HEAD}quants: [{{name: A, {keys}, rules: [{rules}]}}]\n{more}", Path("r"))


def found(
    loaded: LoadedRecipe,
    model: Tensors | ModelTensors | None = None,
    flavour: str = LLAMA_CPP,
    **more: Any,
) -> tuple[Problem, ...]:
    tensors = ModelTensors(model) if isinstance(model, tuple) else model
    return lint(loaded, model=tensors, flavour=flavour, check_files=False, **more)


def shown(problems: tuple[Problem, ...]) -> list[str]:
    return [f"{p.line}:{p.column}: {p.severity}: {p.message}" for p in problems]


def test_a_type_the_engine_lacks_names_the_engine_that_has_it() -> None:
    loaded = one("{attention: iq6_k}, {output: q8_0}", "type: IQ1_KT", CORPUS)
    problems = found(loaded, engine_name="bundled")
    assert shown(problems) == [
        "4:17: error: `bundled` (llama.cpp) has no base type IQ1_KT; ik_llama.cpp has it",
        "4:43: error: `bundled` (llama.cpp) has no iq6_k; ik_llama.cpp has it",
    ]
    assert {p.kind for p in problems} == {"prerequisite"}
    with pytest.raises(PrerequisiteError) as caught:
        raise_problems(problems)
    assert caught.value.exit_code == 5
    assert "--engine ik=" in (caught.value.hint or "")


def test_a_type_that_an_old_build_lacks() -> None:
    old: Any = SimpleNamespace(types={"q8_0": 8}, ftypes=("Q8_0",), flags={})
    (problem,) = found(one("{output: nvfp4}"), facts=old)
    assert problem.kind == "prerequisite"
    assert problem.hint == "this build is older than nvfp4: update it"


def test_a_recipe_for_the_other_engine() -> None:
    loaded = one("", more="engine: ik_llama.cpp\n")
    (problem,) = found(loaded, engine_name="mine")
    assert problem.message == "the recipe needs ik_llama.cpp; `mine` is llama.cpp"
    assert problem.kind == "prerequisite"
    assert found(loaded, flavour=IK_LLAMA_CPP) == ()


def test_faults_of_the_recipe_go_before_prerequisites(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: IQ1_KT}, {name: B, type: F16, rules: [{mtp: f32}]}]\n"
    )
    with pytest.raises(RecipeError) as caught:
        raise_problems(found(loaded))
    assert len(caught.value.problems) == 2


def test_warnings_raise_only_when_strict(small: Tensors) -> None:
    loaded = one("{'.*': q8_0}, {output: q8_0}")
    problems = found(loaded, small)
    raise_problems(problems)
    with pytest.raises(RecipeError):
        raise_problems(problems, strict=True)
    assert {p.severity for p in found(loaded, small, strict=True)} == {"error"}


def test_rules_that_match_nothing_or_are_shadowed(recipe: Make, small: Tensors) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q8_0, rules: [{attention: q6_K}, {attn_q: q8_0},\n"
        "      {shared_experts: q8_0},\n"
        "      {ATTN_K: q8_0}, {'.*': q8_0}]}\n"
        "  - {name: B, extends: A, rules: [{'.*': q4_0}]}\n"
        "  - {name: C, type: Q8_0, mixture: pure, rules: [{attn_q: q8_0}, {attn_k: q8_0},\n"
        "      {attn_output: q8_0}, {attention: q6_K}]}\n"
    )
    problems = found(loaded, small)
    assert shown(problems) == [
        "5:55: warning: rule `attn_q` is shadowed by earlier rules: `attention`",
        "6:8: warning: rule `shared_experts` matches no tensor",
        "7:8: warning: rule `ATTN_K` matches no tensor",
        "10:29: warning: rule `attention` is shadowed by earlier rules: "
        "`attn_q`, `attn_k`, `attn_output`",
    ]
    assert problems[2].hint == "tensor names are lower case: `attn_k`"


def test_uncovered_tensors_unless_the_mixture_is_stated(small: Tensors) -> None:
    (problem,) = found(one("{attention: q8_0}", "type: Q4_0"), small)
    assert problem.severity == "warning"
    assert "no rule hits token_embd.weight, output.weight and 4 more" in problem.message
    for stated in ("pure", "engine"):
        assert not found(one("{attention: q8_0}", f"type: Q4_0, mixture: {stated}"), small)


def test_rows_that_do_not_divide(small: Tensors) -> None:
    (problem,) = found(one("{dense_ffn: q4_K}, {'.*': q8_0}"), small)
    assert (problem.line, problem.column, problem.severity) == (4, 41, "error")
    assert "would silently write q5_0" in problem.message


COLLECTED = "imatrix: {corpus: c.txt, process_output: true}\n"


@pytest.mark.parametrize(
    ("flavour", "base", "rules", "more", "message"),
    [
        (LLAMA_CPP, "IQ3_XXS", "", "", "A: IQ3_XXS needs an imatrix on llama.cpp"),
        (LLAMA_CPP, "IQ3_XXS", "", CORPUS, None),
        (LLAMA_CPP, "Q2_K_S", "", "", "A: Q2_K_S needs an imatrix on llama.cpp"),
        (LLAMA_CPP, "Q2_K_S", "", CORPUS, None),
        (IK_LLAMA_CPP, "IQ2_KT", "", "", "A: IQ2_KT needs an imatrix on ik_llama.cpp"),
        (IK_LLAMA_CPP, "IQ2_KT", "", CORPUS, None),
        (
            *(IK_LLAMA_CPP, "Q8_0", "{routed_experts: iq1_kt}", ""),
            "A: iq1_kt needs an imatrix on ik_llama.cpp "
            "(blk.1.ffn_up_exps.weight, blk.1.ffn_down_exps.weight)",
        ),
        (IK_LLAMA_CPP, "Q8_0", "{routed_experts: iq1_kt}", CORPUS, None),
        (IK_LLAMA_CPP, "Q8_0", "{attention: iq3_xxs}", "", None),
        (LLAMA_CPP, "Q8_0", "{attn_q: iq3_xxs}", "", "A: iq3_xxs needs an imatrix on llama.cpp ("),
        (LLAMA_CPP, "Q8_0", "{embeddings: iq2_xxs}", CORPUS, "embeddings never have any (token_em"),
        (LLAMA_CPP, "Q8_0", "{output: iq1_s}", CORPUS, "the output tensor's is not collected"),
        (LLAMA_CPP, "Q8_0", "{output: iq1_s}", COLLECTED, None),
        (LLAMA_CPP, "Q8_0", "{output: iq1_s}", READY, None),
    ],
)
def test_types_that_need_an_imatrix(
    small: Tensors, flavour: str, base: str, rules: str, more: str, message: str | None
) -> None:
    loaded = one(rules and f"{rules}, {{'.*': q8_0}}", f"type: {base}", more)
    problems = [p for p in found(loaded, small, flavour) if "do not divide" not in p.message]
    assert len(problems) == (message is not None)
    assert all(p.severity == "error" and str(message) in p.message for p in problems)
    if "not collected" in (message or ""):
        assert "process_output: true" in (problems[0].hint or "")


def test_types_that_need_an_imatrix_are_known_without_a_model() -> None:
    problems = found(one("{routed_experts: iq2_xs}"))
    assert shown(problems) == ["4:41: error: iq2_xs needs an imatrix on llama.cpp"]


def test_an_imatrix_that_lacks_tensors(recipe: Make, small: Tensors) -> None:
    needed = one("{routed_experts: iq2_s}, {'.*': q8_0}", more=CORPUS)
    (problem,) = found(needed, small, imatrix=PART_OF_IT)
    assert "that is not in the imatrix (blk.1.ffn_down_exps.weight)" in problem.message
    quants = "{name: A, type: Q8_0, rules: [{routed_experts: q4_0}, {'.*': q8_0}]}"
    for more in ("", ", {name: B, extends: A, imatrix: false}"):
        loaded = recipe(f"quants: [{quants}{more}]\n{READY}")
        (problem,) = found(loaded, small, imatrix=PART_OF_IT)
        assert (problem.line, problem.column, problem.severity) == (5, 17, "warning")
        assert "no data for blk.1.ffn_down_exps.weight: quantized without any" in problem.message


def test_types_that_no_engine_stores() -> None:
    (problem,) = lint(one("{output: q8_K}"), check_files=False)
    assert problem.message == "q8_K is no type of stored weights: the engines abort on it"


def test_a_quantized_source(tensors: Callable[..., Tensors]) -> None:
    model = tensors({"blk.0.attn_q.weight": (512, 512)}, "q8_0")
    loaded = one("{'.*': q4_0}", "type: Q4_0")
    assert shown(found(loaded, model)) == [
        "3:17: error: the source is already quantized (blk.0.attn_q.weight)"
    ]
    allowed = loaded.text.replace("gguf}", "gguf, allow_requantize: true}")
    assert not found(parse_recipe(allowed, Path("r.yaml")), model)


def test_the_flavour_that_types_ask_for() -> None:
    assert flavour_of(one("", "type: IQ1_KT")) == IK_LLAMA_CPP
    assert flavour_of(one("")) == LLAMA_CPP
    assert flavour_of(load_recipe("qwen3-coder-30b-iq1kt")) == IK_LLAMA_CPP


def words(start: int, count: int) -> str:
    return " ".join(f"word{i}" for i in range(start, start + count))


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [
        (0, 9000, "the calibration text is also used for evaluation"),
        (8000, 2000, "the evaluation text shares 232 of 487 sampled passages with"),
        (9000, 5000, None),
    ],
)
def test_calibrating_on_the_evaluation_text(
    tmp_path: Path, start: int, count: int, expected: str | None
) -> None:
    problems = shown(with_texts(tmp_path, words(0, 9000), words(start, count)))
    assert len(problems) == (expected is not None)
    assert all(p.startswith(f"6:20: error: {expected}") for p in problems)


def test_calibrating_on_the_prompts(tmp_path: Path) -> None:
    prompts = "\n".join(p.text for p in load_prompts("default").prompts[:40])
    score = "score: {target: {source: demo://target-q8_0.gguf}}\n"
    (problem,) = with_texts(tmp_path, prompts, words(0, 500), score)
    assert "the scoring text shares" in problem.message
    assert problem.line == 7


def with_texts(
    tmp_path: Path, calibration: str, evaluation: str, more: str = ""
) -> tuple[Problem, ...]:
    (tmp_path / "c.txt").write_text(calibration)
    (tmp_path / "e.txt").write_text(evaluation)
    text = f"{HEAD}quants: [{{name: A, type: Q8_0}}]\n"
    text += f"imatrix: {{corpus: c.txt}}\nevaluate: {{corpus: e.txt}}\n{more}"
    return lint(parse_recipe(text, tmp_path / "r.yaml"))


def test_missing_files_are_reported_with_the_place(tmp_path: Path) -> None:
    text = "version: 1\nname: x\nmodel: {source: a.gguf}\ninclude_source: true\n"
    problems = lint(parse_recipe(text, tmp_path / "r.yaml"))
    assert shown(problems) == [f"3:17: error: no such file: {tmp_path / 'a.gguf'}"]
    with pytest.raises(RecipeError):
        raise_problems(problems)


def test_categories_that_the_prompts_lack() -> None:
    target = "target: {source: demo://target-q8_0.gguf}"
    more = f"score:\n  {target}\n  categories: [code, chats]\n  weights: {{reasonning: 2}}\n"
    problems = lint(one("", more=more))
    assert shown(problems) == [
        "7:22: error: the prompts have no category `chats`",
        "8:13: error: the prompts have no category `reasonning`",
    ]
    assert problems[0].hint == "did you mean `chat`?"


HEADS = (
    "quants: [{name: H, part: head, type: IQ2_XXS, rules: [{embeddings: q8_0}, {mtp: iq2_xxs}]}]\n"
)


def head_model(make: Callable[..., Tensors], *more: str) -> ModelTensors:
    names = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight", *more)
    return ModelTensors(make(dict.fromkeys(names, (256, 256))), "glm4moe")


def test_a_head_of_a_source_without_one(recipe: Make, tensors: Callable[..., Tensors]) -> None:
    loaded = recipe(HEADS.replace("rules", "experts: 4, prune_layers: 3, rules") + CORPUS)
    problems = found(loaded, head_model(tensors))
    assert [p.message for p in problems if p.severity == "error"] == [
        "quant H is a head, which is taken whole: `experts` is of models",
        "quant H is a head, which is taken whole: `prune_layers` is of models",
        "quant H: `part: head` of a source without one: it has no block with `nextn` tensors",
    ]


def test_ik_has_no_mixture_for_a_head(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: H, part: head, type: Q8_0}, {name: F, part: head, type: F16}]\n"
    )
    assert found(loaded) == ()
    (problem,) = found(loaded, flavour=IK_LLAMA_CPP)
    assert problem.message.startswith("quant H: the mixture of ik_llama.cpp is of whole models")


def test_where_a_head_has_no_imatrix(recipe: Make, tensors: Callable[..., Tensors]) -> None:
    """It is collected from the target's hidden states, on llama.cpp."""
    whole = head_model(tensors, "blk.1.nextn.eh_proj.weight")
    alone = ModelTensors([t for t in whole.tensors if "blk.0" not in t.name], "glm4moe")

    def hints(more: str, model: ModelTensors, flavour: str = LLAMA_CPP) -> list[str]:
        problems = found(recipe(HEADS + more), model, flavour)
        return list(dict.fromkeys(p.hint or "" for p in problems if "needs an i" in p.message))

    assert hints(CORPUS, whole) == []
    assert hints(f"{CORPUS}score: {{target: {{source: t.gguf}}}}\n", alone) == []
    (hint,) = hints(CORPUS, alone)
    assert hint.endswith("add a `score.target`, or choose another type")
    (hint,) = hints(CORPUS, whole, IK_LLAMA_CPP)
    assert hint.startswith("on ik_llama.cpp no imatrix of a head is collected")
    (hint,) = hints("", whole)
    assert hint.startswith("add `imatrix: {corpus: ...}`")
    loaded = recipe(HEADS.replace("IQ2_XXS", "Q4_0").replace("iq2_xxs", "q4_0") + CORPUS)
    (problem,) = found(loaded, whole, IK_LLAMA_CPP)
    assert problem.severity == "warning"
    assert problem.message == "quants of a head are made without it"
