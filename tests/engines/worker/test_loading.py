"""A deployed model in the worker's words: what its server is given, and nothing that is dropped."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.engines.base import ModelArgs
from cook.engines.environment import default_threads
from cook.engines.tool_output import parse_buffers
from cook.engines.worker.loading import few_rows, head_load, model_load, without_rows
from cook.engines.worker.messages import ModelLoad
from cook.errors import PrerequisiteError
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import Flavour, by_name

MODEL = Path("/m/a.gguf")
LLAMA, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


def engine(flavour: Flavour, **environment: str) -> Any:
    return SimpleNamespace(flavour=str(flavour), environment=lambda: environment)


def load(flavour: Flavour, args: ModelArgs, context: int = 512) -> ModelLoad:
    return model_load(engine(flavour), MODEL, args, context)


def numbers(found: ModelLoad) -> dict[str, float | str]:
    return {p.name: p.value for p in found.parameters}


def test_threads_are_the_recipe_s_and_else_the_server_s() -> None:
    assert load(LLAMA, ModelArgs()).threads == default_threads()
    assert load(LLAMA, ModelArgs(threads=2)).threads == 2


def test_repacking_is_the_engine_s_and_a_flag_of_the_recipe_wins() -> None:
    name = "model.use_extra_bufts"
    faulty = engine(LLAMA, LLAMA_ARG_REPACK="0")
    assert name not in numbers(load(LLAMA, ModelArgs()))
    assert numbers(model_load(faulty, MODEL, ModelArgs(), 512))[name] == 0
    flagged = ModelArgs(extra=("--repack",))
    assert numbers(model_load(faulty, MODEL, flagged, 512))[name] == 1


def test_what_the_servers_set_and_the_library_does_not_is_set() -> None:
    assert numbers(load(LLAMA, ModelArgs())) == {"context.swa_full": 0, "context.no_perf": 0}
    assert numbers(load(IK, ModelArgs(ubatch=1024, batch=4096), 800)) == {
        "context.only_active_experts": 1,
        "model.mla": 3,
        "model.max_ctx_size": 800,
        "model.n_ubatch": 800,
    }
    some = model_load(engine(LLAMA), MODEL, ModelArgs(), 512, outputs=9)
    assert numbers(some)["context.n_outputs_max"] == 9
    assert numbers(some)["context.n_outputs_max_per_seq"] == 9


def test_arguments_of_the_recipe_are_the_library_s_parameters() -> None:
    args = ModelArgs(n_gpu_layers=7, cache_type_k="q8_0", cache_type_v="q4_0", flash_attention=True)
    found = numbers(load(LLAMA, args))
    assert found["model.n_gpu_layers"] == 7
    assert found["context.type_k"] == "q8_0"
    assert found["context.type_v"] == "q4_0"
    assert found["context.flash_attn_type"] == 1
    found = numbers(load(IK, args))
    for of in ("model", "context"):
        assert found[f"{of}.type_k"] == "q8_0"
        assert found[f"{of}.type_v"] == "q4_0"
        assert found[f"{of}.flash_attn"] == 1


def test_a_head_of_ik_has_the_weights_of_the_target_that_gives_rows() -> None:
    """So that one worker reads the file once for rows, prices and replay."""
    args = ModelArgs(threads=1)
    rows = model_load(engine(IK), MODEL, args, 512, gives_rows=True)
    head = head_load(engine(IK), MODEL, args, 512, branches=32, depth=4)
    assert rows.weights == head.weights != load(IK, args).weights
    assert numbers(rows)["context.mtp"] == numbers(head)["context.mtp"] == 1
    assert "context.mtp_op_type" not in numbers(rows)
    assert numbers(head)["context.mtp_op_type"] == 1
    assert (head.context, numbers(head)["context.n_seq_max"]) == (512 + 32 * 4, 33)
    apart = head_load(engine(LLAMA), MODEL, args, 512, branches=32, depth=4)
    assert numbers(apart)["model.load_mtp"] == numbers(apart)["context.kv_unified"] == 1
    assert (rows.gives_rows, head.gives_rows, apart.gives_rows) == (True, False, False)


@pytest.mark.parametrize("flavour", [LLAMA, IK])
def test_a_target_without_rows_keeps_its_weights_where_they_are(flavour: Flavour) -> None:
    rows = model_load(engine(flavour), MODEL, ModelArgs(), 512, gives_rows=True)
    bare = without_rows(rows)
    assert not bare.gives_rows
    assert bare.weights == rows.weights
    assert numbers(bare).get("context.mtp") == (0 if flavour is IK else None)


def test_experts_stay_on_the_cpu_as_each_server_keeps_them() -> None:
    (one,) = load(LLAMA, ModelArgs(n_cpu_moe=11)).overrides
    pattern, _, where = one.rpartition("=")
    assert where == "CPU"
    for name in ("blk.0.ffn_up_exps.weight", "blk.10.ffn_gate_up_exps.weight"):
        assert re.search(pattern, name)
    for name in ("blk.11.ffn_up_exps.weight", "blk.0.ffn_up_shexp.weight", "blk.100.ffn_up_exps"):
        assert not re.search(pattern, name)
    args = ModelArgs(override_tensor=("ffn_up=CPU,attn=CUDA0",), cpu_moe=True)
    first, second, experts = load(LLAMA, args).overrides
    assert (first, second) == ("ffn_up=CPU", "attn=CUDA0")
    assert re.search(experts.removesuffix("=CPU"), "blk.70.ffn_down_exps.weight")
    assert numbers(load(IK, ModelArgs(cpu_moe=True)))["model.ncmoe"] == 999
    assert numbers(load(IK, ModelArgs(n_cpu_moe=3)))["model.ncmoe"] == 3


def test_no_override_is_cut_off() -> None:
    many = tuple(rf"blk\.{i}\.ffn=CPU" for i in range(100))
    assert load(LLAMA, ModelArgs(override_tensor=many)).overrides == many


def test_rpc_servers_are_scored_live() -> None:
    with pytest.raises(PrerequisiteError, match="RPC") as caught:
        load(LLAMA, ModelArgs(rpc=("127.0.0.1:50052",)))
    assert "method: live" in str(caught.value.hint)
    assert "cook predict --link-ms" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("log", "on"),
    [
        (b"load_tensors:   CPU_Mapped model buffer size =    24.66 MiB\n", False),
        (b"llama_context:        CPU  output buffer size =     0.01 MiB\n", False),
        (b"llm_load_tensors:        CPU buffer size =   205.00 MiB\n", False),
        (b"llm_load_tensors:  CUDA_Host buffer size =   205.00 MiB\n", False),
        (b"sched_reserve:  CUDA_Host compute buffer size =    16.01 MiB\n", False),
        (b"load_tensors:        CUDA0 model buffer size =  3577.56 MiB\n", True),
        (b"llama_kv_cache:      CUDA1 KV buffer size =   256.00 MiB\n", True),
        (b"llm_load_tensors:      CUDA0 buffer size =  8620.70 MiB\n", True),
    ],
)
def test_accelerators_are_known_by_their_buffers(log: bytes, on: bool) -> None:
    """A build without any says that layers are offloaded all the same."""
    _, on_devices = parse_buffers(b"load_tensors: offloaded 6/6 layers to GPU\n" + log)
    assert (on_devices > 0) is on


def test_a_batch_of_ik_stays_below_where_its_weights_are_quantized_again(tmp_path: Path) -> None:
    def rows(*types: str) -> int | None:
        kinds = [(by_name(name), (256, 8)) for name in types]
        tensors = [
            tensor_of(f"blk.{i}.weight", shape, kind.id, bytes(kind.tensor_bytes(shape)))
            for i, (kind, shape) in enumerate(kinds)
        ]
        write_gguf_file(tmp_path / "m.gguf", {"general.architecture": encode("llama")}, tensors)
        assert few_rows(tmp_path / "m.gguf", LLAMA) is None
        return few_rows(tmp_path / "m.gguf", IK)

    assert rows("q6_K", "f32") == 31
    assert rows("q8_0", "iq4_kt") == 23
    assert rows("iq2_kt", "iq4_kt", "q4_K") == 15
    assert few_rows(tmp_path / "absent.gguf", IK) is None
