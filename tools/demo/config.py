"""The sizes of the demo pair.

They were fixed by measurement with random weights before any training: the
target's decode step has to cost at least seven times the F16 draft's at one
thread, both files together have to stay under 48 MB, and every quantizable row
has to divide by 256 so that every K, IQ and KT type applies.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class ModelConfig:
    """One bailingmoe2 model. Widths and lengths are counted in elements.

    ``n_nextn`` 1: not the model, but the head that drafts for it, one block behind its last.
    """

    name: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff_dense: int
    n_ff_expert: int
    n_ff_shared: int
    n_expert: int
    n_expert_used: int
    n_vocab: int = 2048
    n_dense: int = 1
    head_dim: int = 64
    rope_dim: int = 32
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    weights_scale: float = 2.5
    context_length: int = 4096
    n_nextn: int = 0

    @property
    def q_rows(self) -> int:
        return self.n_head * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.n_head_kv * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its GGUF name; shapes in NumPy order (rows first)."""
        d, last = self.n_embd, self.n_layer
        if self.n_nextn:
            head = {"eh_proj": (d, 2 * d), "enorm": (d,), "hnorm": (d,), "shared_head_norm": (d,)}
            named = {f"blk.{last}.nextn.{key}.weight": shape for key, shape in head.items()}
            return self._block(last) | named
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.n_vocab, d)}
        for i in range(last):
            shapes |= self._block(i)
        return shapes | {"output_norm.weight": (d,), "output.weight": (self.n_vocab, d)}

    def _block(self, i: int) -> dict[str, tuple[int, ...]]:
        d, e = self.n_embd, self.n_expert
        block: dict[str, tuple[int, ...]] = {
            "attn_norm": (d,),
            "attn_qkv": (self.q_rows + 2 * self.kv_rows, d),
            "attn_q_norm": (self.head_dim,),
            "attn_k_norm": (self.head_dim,),
            "attn_output": (d, self.q_rows),
            "ffn_norm": (d,),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        if i < self.n_dense:
            block |= {
                "ffn_gate": (self.n_ff_dense, d),
                "ffn_up": (self.n_ff_dense, d),
                "ffn_down": (d, self.n_ff_dense),
            }
        else:
            block |= {
                "ffn_gate_inp": (e, d),
                "ffn_gate_exps": (e, self.n_ff_expert, d),
                "ffn_up_exps": (e, self.n_ff_expert, d),
                "ffn_down_exps": (e, d, self.n_ff_expert),
                "ffn_gate_shexp": (self.n_ff_shared, d),
                "ffn_up_shexp": (self.n_ff_shared, d),
                "ffn_down_shexp": (d, self.n_ff_shared),
            }
            shapes[f"blk.{i}.exp_probs_b.bias"] = (e,)
        return shapes | {f"blk.{i}.{key}.weight": shape for key, shape in block.items()}

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


TARGET = ModelConfig(
    name="cook-demo-target",
    n_embd=512,
    n_layer=5,
    n_head=8,
    n_head_kv=2,
    n_ff_dense=2048,
    n_ff_expert=256,
    n_ff_shared=512,
    n_expert=8,
    n_expert_used=6,
)

DRAFT = ModelConfig(
    name="cook-demo-draft",
    n_embd=256,
    n_layer=2,
    n_head=4,
    n_head_kv=2,
    n_ff_dense=512,
    n_ff_expert=256,
    n_ff_shared=256,
    n_expert=8,
    n_expert_used=2,
)

HEAD = replace(TARGET, name="cook-demo-head", n_nextn=1)
