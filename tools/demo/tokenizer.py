"""The demo pair's tokenizer: byte-level BPE, the engines' `gpt-2` pre-tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo.export import END_OF_TEXT, Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def train(documents: Iterable[str], size: int, path: Path) -> None:
    """Learns `size` tokens, the end-of-text token among them, and writes `path`."""
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = _byte_level(models.BPE())
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


def of_vocabulary(vocabulary: Vocabulary) -> Any:
    """The tokenizer of a file's vocabulary."""
    from tokenizers import models

    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    merges = [(first, second) for first, second in (m.split(" ") for m in vocabulary.merges)]
    return _byte_level(models.BPE(ids, merges))


def _byte_level(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encoded(tokenizer: Any, documents: list[str]) -> NDArray[np.uint16]:
    """Token ids of the documents, each ended by the end-of-text token."""
    import numpy as np

    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [i for encoding in tokenizer.encode_batch(documents) for i in (*encoding.ids, end)]
    return np.array(ids, np.uint16)


def load(path: Path) -> Any:
    """The tokenizer; its `encode(text).ids` are the engines' token ids."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
