"""Print the memory of a context as the bundled engine lays it out, of a model that is a header.

    python tests/formats/engine_cache.py HEADER.gguf N_CTX TYPE FLASH_ATTENTION(0, 1) ...

The engine makes the tensors itself (llama_model_init_from_user); their content does not matter.
For each three words prints a line of JSON: every buffer of keys and values (KV) and of recurrent
state (RS), in MiB as the engine's log has them.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys

import llama_cpp

BUFFER = re.compile(rb"(KV|RS) buffer size = +([\d.]+) MiB")
TYPES = {"f16": 1, "q8_0": 8}


class _Gguf(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def main(path: str, *asked: str) -> None:
    found: dict[str, list[float]] = {"KV": [], "RS": []}

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, data: object) -> None:
        for kind, size in BUFFER.findall(text):
            found[kind.decode()].append(float(size))
        if level >= 4:
            sys.stderr.write(text.decode(errors="replace"))

    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    base = ctypes.CDLL(llama_cpp.llama_cpp._lib._name.replace("libllama.", "libggml-base."))
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = (ctypes.c_char_p, _Gguf)
    header = base.gguf_init_from_file(path.encode(), _Gguf(True, None))
    assert header, "the header is read"
    made = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda tensor, data: None)
    init = llama_cpp.llama_cpp._lib.llama_model_init_from_user
    init.restype = ctypes.c_void_p
    init.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        llama_cpp.llama_model_params,
    )
    llama_cpp.llama_backend_init()
    model = init(header, made, None, llama_cpp.llama_model_default_params())
    assert model, "the model is made"
    for context, kind, flash in zip(asked[::3], asked[1::3], asked[2::3], strict=True):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = int(context), 512, 512, 1
        params.type_k = params.type_v = TYPES[kind]
        params.flash_attn_type, params.swa_full = int(flash), False
        made_context = llama_cpp.llama_init_from_model(model, params)
        assert made_context, "the context is made"
        llama_cpp.llama_free(made_context)
        print(json.dumps(found))
        found["KV"].clear()
        found["RS"].clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
