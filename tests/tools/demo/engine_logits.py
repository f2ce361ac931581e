"""Run as a program: logits of the bundled engine for given tokens, as a .npy file.

    python engine_logits.py MODEL TOKENS.npy LOGITS.npy

A program of its own, because a crash of the engine must not end the test run.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def engine_logits(model_path: str, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    import llama_cpp as engine

    engine.llama_backend_init()
    model_params = engine.llama_model_default_params()
    model_params.use_extra_bufts = False
    model: Any = engine.llama_model_load_from_file(model_path.encode(), model_params)
    params = engine.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = engine.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = engine.GGML_TYPE_F32
    context: Any = engine.llama_init_from_model(model, params)
    batch = engine.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i] = int(token), i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
    if engine.llama_decode(context, batch) != 0:
        raise SystemExit("llama_decode failed")
    size = engine.llama_vocab_n_tokens(engine.llama_model_get_vocab(model))
    rows = engine.llama_get_logits(context)
    flat = np.ctypeslib.as_array(
        ctypes.cast(rows, ctypes.POINTER(ctypes.c_float)), (len(tokens) * size,)
    )
    return flat.reshape(len(tokens), size).copy()


if __name__ == "__main__":
    np.save(sys.argv[3], engine_logits(sys.argv[1], np.load(sys.argv[2])))
