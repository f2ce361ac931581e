"""Groups as patterns: for every tensor name they tell what the groups tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cook.formats.gguf import TensorInfo
from cook.recipe.foreign.exporting import PATTERNS
from cook.recipe.foreign.importing import group_rules
from cook.recipe.foreign.quants import selector_of
from cook.recipe.groups import group_of
from cook.recipe.pattern import parse_pattern
from cook.recipe.rules import ModelTensors, Rule

# Names of gguf-py/gguf/constants.py, across architectures; norms, biases and vectors are kept.
STEMS = re.findall(
    r"\S+",
    """
token_embd output per_layer_token_embd position_embd token_types cls cls.output dense_2_out
blk.0.attn_q blk.10.attn_k blk.3.attn_v blk.3.attn_qkv blk.0.attn_output blk.0.attn_q_a
blk.0.attn_q_b blk.0.attn_kv_a_mqa blk.0.attn_kv_b blk.0.attn_k_b blk.0.attn_v_b blk.0.attn_gate
blk.0.indexer.attn_k blk.0.cross_attn_q blk.0.attn_rel_b dec.blk.4.cross_attn_v enc.blk.1.attn_q
blk.0.ffn_up blk.0.ffn_gate blk.0.ffn_down blk.0.ffn_gate_up blk.0.ffn_latent_up enc.blk.2.ffn_up
blk.0.ffn_up_shexp blk.9.ffn_down_shexp blk.1.ffn_gate_up_shexps blk.0.ffn_gate_inp_shexp
blk.0.ffn_up_exps blk.31.ffn_down_exps blk.1.ffn_gate_up_exps blk.0.ffn_gate.7 blk.0.ffn_up_chexps
blk.0.ffn_up_exp blk.0.ffn_gate_inp blk.0.ffn_gate_tid2eid blk.0.ssm_in blk.0.ssm_out
blk.0.time_mix_key blk.0.shortconv.in_proj blk.0.nextn.eh_proj blk.0.altup_proj
""",
)


def test_the_patterns_tell_the_groups_of_known_names() -> None:
    for stem in STEMS:
        name = f"{stem}.weight"
        hit = {g for g, p in PATTERNS.items() if parse_pattern(p).search(name)}
        told = group_of(name)
        assert hit == ({told} & set(PATTERNS)), name


@given(
    st.sampled_from(["", "blk.0.", "blk.17.", "enc.blk.3.", "dec.blk.1."]),
    st.lists(
        st.sampled_from(
            ["attn_", "ffn_", "up", "gate_", "_exps", "_shexp", "inp", "cls", ".", "q"]
        ),
        max_size=4,
    ).map("".join),
)
def test_a_tensor_is_hit_by_at_most_one_pattern(block: str, stem: str) -> None:
    hit = [g for g, p in PATTERNS.items() if re.search(p, f"{block}{stem}.weight")]
    assert len(hit) <= 1


def test_the_patterns_are_sayable_everywhere() -> None:
    for pattern in PATTERNS.values():
        assert not re.search(r"[,=\s A-Z]|\{", pattern)


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
    tensors = [TensorInfo(name, (256, 256), 0) for name in names]
    rules = [Rule(selector_of(pattern), type_name) for pattern, type_name in pairs]
    model = ModelTensors(tensors)
    written, unused, covered = group_rules(rules, model, "llama.cpp")

    def types(rules: Sequence[Rule]) -> list[str | None]:
        return [next((r.type for r in rules if name in model.hits(r)), None) for name in names]

    assert types(written) == types(rules)
    assert types([r for r in rules if not any(r is other for other in unused)]) == types(rules)
    assert covered == (None not in types(rules))


def test_selectors_that_need_to_be_forced() -> None:
    assert selector_of("output") == "re:output"
    assert selector_of("attn") == "re:attn"  # near a group's name, so a recipe would ask
    assert selector_of("re:x") == "re:re:x"
    assert selector_of(r"attn_v\.weight") == r"attn_v\.weight"
