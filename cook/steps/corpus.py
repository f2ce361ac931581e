"""Step: what the target wrote, as a text that an importance matrix is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cook.engines.base import Engine
from cook.errors import StepError
from cook.graph.cost import Cost
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.steps.imatrix import CORPUS_FILE
from cook.steps.phase import Phase
from cook.steps.trace import Trace, read_trace
from cook.steps.work import BYTES_A_TOKEN

_SEPARATOR = "\n\n"
_PARSE_SPECIAL = "--parse-special"


@dataclass(frozen=True)
class TraceCorpusOutcome:
    """``tokens`` of prompts and replies, in ``text_bytes`` of text."""

    replies: int
    tokens: int
    text_bytes: int


@dataclass(frozen=True)
class TraceCorpusStep(Step[TraceCorpusOutcome]):
    """Prompts and replies of ``trace`` as text; artifact ``corpus.txt``.

    ``model`` is the one whose imatrix is wanted: it has the target's tokens. Prompts stay in,
    because a draft reads them as well. Special tokens (of a chat template) stay where the
    engine's imatrix tool has an option to parse them (:func:`corpus_args`), else they are left out:
    spelt out they would be text that never occurs.
    """

    engine: Engine
    model: Source
    trace: Trace

    kind: ClassVar[str] = "trace-corpus"
    phase: ClassVar[str] = Phase.IMATRIX
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"calibration text of the target ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {"special": bool(corpus_args(self.engine)), "separator": _SEPARATOR}

    def cost(self) -> Cost:
        return Cost((float(self.model.size_bytes),))

    def predicted_bytes(self) -> int:
        return round(self.trace.tokens) * BYTES_A_TOKEN

    def run(self, bench: Workbench) -> TraceCorpusOutcome:
        from cook.engines.worker.messages import ModelLoad
        from cook.trace.compatible import require_draft

        trace = read_trace(bench, self.trace)
        require_draft(trace, self.model.path, self.engine.flavour)
        special = bool(corpus_args(self.engine))
        tokens, texts = 0, []
        load = ModelLoad(self.model.path, vocabulary_only=True)
        with bench.workers.loaded(self.engine, load) as (worker, info):
            ends = info.eog | ({info.bos} if info.add_bos and info.bos is not None else set())
            for index, reply in enumerate(trace):
                said = [*reply.prompt.tolist(), *reply.tokens[: reply.head.emitted].tolist()]
                # the imatrix tool begins each chunk on its own, and a reply's end is no text
                first = 1 if said[0] in ends else 0
                last = len(said) - (1 if said[-1] in ends else 0)
                texts.append(worker.detokenize(said[first:last], special=special))
                tokens += last - first
                bench.advance((index + 1) / len(trace))
        text = _SEPARATOR.join(texts)
        if not text.strip():
            raise StepError(f"{self.label}: the trace has no text")
        data = text.encode()
        (bench.directory / CORPUS_FILE).write_bytes(data)
        return TraceCorpusOutcome(len(texts), tokens, len(data))


def corpus_args(engine: Engine) -> tuple[str, ...]:
    """Flags of ``llama-imatrix`` for such a text: special tokens are parsed where it can."""
    known = _PARSE_SPECIAL in engine.facts.flags.get("imatrix", ())
    return (_PARSE_SPECIAL,) if known else ()
