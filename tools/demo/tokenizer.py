"""The demo pair's tokenizer: byte-level BPE, the engines' `gpt-2` pre-tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.demo.export import END_OF_TEXT


def train(documents: Iterable[str], size: int, path: Path) -> None:
    """Learns `size` tokens, the end-of-text token among them, and writes `path`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"learnt {tokenizer.get_vocab_size()} tokens, wanted {size}")
    tokenizer.save(str(path))


def load(path: Path) -> Any:
    """The tokenizer; its `encode(text).ids` are the engines' token ids."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
