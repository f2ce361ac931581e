"""How a model is placed and run, as a recipe says it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from cook.recipe.fields import Line, Spec, fault, one_or_many

if TYPE_CHECKING:
    from cook.engines.base import ModelArgs

Lines = Annotated[
    tuple[Line, ...],
    BeforeValidator(one_or_many, json_schema_input_type=Line | list[Line]),
    Field(max_length=256),
]
CacheType = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q6_0", "q8_KV"
]
Threads = Annotated[int, Field(ge=1, le=1024)]
Batch = Annotated[int, Field(ge=1, le=1 << 20)]


class ModelArgsSpec(Spec):
    """Where a model's weights go and how it runs. What is absent is the engine's default."""

    n_gpu_layers: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Layers on the GPU (`-ngl`); 99 is all of most models."""
    override_tensor: Lines = ()
    """Placement of tensors by pattern (`-ot`), such as `exps=CPU`; one, or a list."""
    cpu_moe: bool = False
    """Keep all routed experts in CPU memory (`--cpu-moe`)."""
    n_cpu_moe: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Keep the routed experts of the first N layers in CPU memory (`--n-cpu-moe`)."""
    devices: Lines = ()
    """Devices to use (`--device`), such as `CUDA0`; one, or a list."""
    cache_type_k: CacheType | None = None
    """Type of the keys in the KV cache (`-ctk`)."""
    cache_type_v: CacheType | None = None
    """Type of the values in the KV cache (`-ctv`)."""
    flash_attention: bool | None = None
    """Flash attention on or off (`-fa`)."""
    threads: Threads | None = None
    """CPU threads when decoding (`-t`)."""
    threads_batch: Threads | None = None
    """CPU threads when reading a prompt (`-tb`)."""
    batch: Batch | None = None
    """Logical batch in tokens (`-b`)."""
    ubatch: Batch | None = None
    """Physical batch in tokens (`-ub`)."""
    rpc: Lines = ()
    """RPC servers, `host:port`; one, or a list."""
    extra: Annotated[tuple[Line, ...], Field(max_length=256)] = ()
    """Raw flags of the engine, as a list: only reviewed, harmless ones pass (flags.md);
    others need `--allow-unsafe-args` on the command line."""

    @field_validator("rpc")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for server in value:
            if not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", server):
                raise fault(f"`{server}` is not host:port")
        return value

    def to_model_args(self) -> ModelArgs:
        """The same as the engines' own record."""
        from cook.engines.base import ModelArgs

        return ModelArgs(**{name: getattr(self, name) for name in type(self).model_fields})
