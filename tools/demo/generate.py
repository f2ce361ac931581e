"""Text that the target itself writes, through the bundled engine.

A draft meets the target's text, not people's; distilling on it is what raises
acceptance. Each row is the beginning of a training document and then what the
target makes of it, greedily for three rows in four, mildly sampled otherwise.

    python -m tools.demo.generate --model TARGET.gguf --text focus.bin --out own-512.bin
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARALLEL = 16
_TEMPERATURE = 0.6


def beginnings(
    tokens: NDArray[np.int32], rows: int, length: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows of `length` tokens, each begun by a document, and how many tokens are given.

    `tokens` are documents that each end with the end-of-text token, id 0.
    """
    documents = [d for d in np.split(tokens, np.flatnonzero(tokens == 0) + 1) if len(d) > 60]
    if length > 512:
        documents = [d for d in documents if len(d) > length // 2]
    prompts = np.zeros((rows, length), dtype=np.int32)
    sizes = np.zeros(rows, dtype=np.int32)
    for row, chosen in enumerate(rng.permutation(np.arange(rows) % len(documents))):
        document = documents[chosen][:-1]
        most = min(len(document), length * 3 // 4)
        sizes[row] = rng.integers(24 if length <= 512 else most // 2, most)
        prompts[row, : sizes[row]] = document[: sizes[row]]
    return prompts, sizes


class Writer:
    """The engine with `PARALLEL` sequences; it samples in NumPy."""

    def __init__(self, model_path: str, length: int) -> None:
        import llama_cpp as engine

        self.engine = engine
        engine.llama_backend_init()
        model_params = engine.llama_model_default_params()
        model_params.use_extra_bufts = False
        self.model: Any = engine.llama_model_load_from_file(model_path.encode(), model_params)
        params = engine.llama_context_default_params()
        params.n_ctx = PARALLEL * length
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = PARALLEL
        params.n_threads = params.n_threads_batch = 1
        self.context: Any = engine.llama_init_from_model(self.model, params)
        self.size = engine.llama_vocab_n_tokens(engine.llama_model_get_vocab(self.model))
        self.batch = engine.llama_batch_init(512, 0, 1)

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """Decodes (token, position, sequence, wanted) entries; rows of the wanted ones."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, wanted
        if self.engine.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        wanted_rows = [i for i, entry in enumerate(entries) if entry[3]]
        found = np.empty((len(wanted_rows), self.size), dtype=np.float32)
        for row, i in enumerate(wanted_rows):
            logits = self.engine.llama_get_logits_ith(self.context, i)
            found[row] = np.ctypeslib.as_array(logits, (self.size,))
        return found

    def complete(
        self, prompts: NDArray[np.int32], sizes: NDArray[np.int32], rng: np.random.Generator
    ) -> NDArray[np.int32]:
        """Fills up at most `PARALLEL` rows; the first `sizes` tokens of each are given."""
        rows, length = prompts.shape
        text = prompts.copy()
        at = sizes.copy()
        self.engine.llama_memory_clear(self.engine.llama_get_memory(self.context), True)
        logits = np.empty((rows, self.size), dtype=np.float32)
        for row in range(rows):
            given = text[row, : at[row]]
            for first in range(0, len(given), 512):
                part = given[first : first + 512]
                last = first + len(part) == len(given)
                entries = [
                    (int(token), first + i, row, last and i == len(part) - 1)
                    for i, token in enumerate(part)
                ]
                found = self._decode(entries)
            logits[row] = found[0]
        live = np.arange(rows)
        while True:
            text[live, at[live]] = [self._pick(logits[row], int(row), rng) for row in live]
            at[live] += 1
            live = live[at[live] < length]
            if not len(live):
                return text
            entries = [(int(text[r, at[r] - 1]), int(at[r] - 1), int(r), True) for r in live]
            logits[live] = self._decode(entries)

    def _pick(self, logits: NDArray[np.float32], row: int, rng: np.random.Generator) -> int:
        if row % 4:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / _TEMPERATURE).astype(np.float64)
        return int(rng.choice(self.size, p=weights / weights.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Text that the target itself writes.")
    parser.add_argument("--model", required=True, help="the target as GGUF")
    parser.add_argument("--text", required=True, help="documents as a .bin of token ids")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    tokens = np.fromfile(arguments.text, np.uint16).astype(np.int32)
    prompts, sizes = beginnings(tokens, arguments.rows, arguments.length, rng)
    writer = Writer(arguments.model, arguments.length)
    with arguments.out.open("wb") as file:
        for first in range(0, len(prompts), PARALLEL):
            part = slice(first, first + PARALLEL)
            writer.complete(prompts[part], sizes[part], rng).astype(np.uint16).tofile(file)
            file.flush()


if __name__ == "__main__":
    main()
