"""The tokenizer of a GGUF through the engine itself, its weights left on the disk."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.formats.gguf import read_gguf
from cook.formats.vocabulary import read_vocabulary


class Tokenizer(Closing):
    """Tokenizes as ``engine`` does with the vocabulary in ``path``. A context manager."""

    def __init__(self, engine: Engine, path: Path, supervisor: Supervisor) -> None:
        self.path = path
        self.file = read_gguf(path)
        self.vocabulary = read_vocabulary(self.file)
        self._worker = Worker.open(engine, supervisor, name="tokenizer")
        try:
            info = self._worker.load(ModelLoad(path, vocabulary_only=True))
        except BaseException:
            self._worker.close()
            raise
        self.size, self.eog = info.n_vocab, info.eog

    def close(self) -> None:
        self._worker.close()

    @cached_property
    def template(self) -> str | None:
        """The chat template in the file."""
        return self.file.string("tokenizer.chat_template") or None

    def tokenize(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        """Token ids of ``text``; special tokens in it are parsed as such."""
        return self._worker.tokenize(text, add_special=add_special)
