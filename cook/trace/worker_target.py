"""A target that runs here, in cook's own worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cook.closing import Closing
from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import Generation, ModelInfo
from cook.engines.worker.worker import Worker
from cook.errors import InternalError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.trace_file import Reply, ReplyHead, TraceHeader, tokenizer_facts
from cook.formats.vocabulary import Vocabulary, read_vocabulary
from cook.graph.step import Source
from cook.prompts.prompt_set import Prompt
from cook.trace.session import Dropped, TraceRequest, sha256


@dataclass
class WorkerTarget(Closing):
    """``source`` through a worker of ``engine``; a context manager that ends it.

    ``chat``: prompts are rendered by the target's own template, as its server does it.
    """

    engine: Engine
    source: Source
    args: ModelArgs
    context: int
    chat: bool
    supervisor: Supervisor
    _rendered: dict[str, str] = field(default_factory=dict)
    _worker: Worker | None = None
    _info: ModelInfo | None = None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @cached_property
    def file(self) -> GgufFile:
        """The target's header."""
        return read_gguf(self.source.path)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.file)

    @property
    def _template(self) -> str | None:
        return self.file.string("tokenizer.chat_template") if self.chat else None

    def header(self, plan: TraceRequest) -> TraceHeader:
        info = self._vocabulary_only()
        identity = self.engine.identity
        return TraceHeader(
            target_name=self.source.path.name,
            target_sha256=self.source.digest,
            tokenizer_sha256=self.vocabulary.digest,
            tokenizer=tokenizer_facts(self.vocabulary),
            template_sha256=sha256(self._template or ""),
            prompts_sha256=plan.prompts_sha256,
            vocabulary_size=info.n_vocab,
            eog=tuple(sorted(info.eog)),
            flavour=str(self.engine.flavour),
            engine_build=identity.build,
            engine_digest=identity.digest,
            device="gpu" if self.args.n_gpu_layers else "cpu",
            cache_type_k=self.args.cache_type_k or "f16",
            cache_type_v=self.args.cache_type_v or "f16",
            context=plan.context,
            n_predict=plan.max_tokens,
            extra_tokens=plan.extra,
            top=plan.top,
            sampler=plan.sampler,
        )

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Render the prompts, then load the model."""
        self._rendered = {p.id: p.text for p in prompts}
        if self.chat:
            from cook.engines.server import Server

            job = ServerJob(target=self.source.path, target_args=self.args, context=self.context)
            with Server(self.engine, job, self.supervisor) as server:
                self._rendered = {p.id: server.apply_template(p.text) for p in prompts}
        self._worker = Worker.open(self.engine, self.supervisor, name="trace")
        load = model_load(self.engine, self.source.path, self.args, self.context)
        self._info = self._worker.load(load)

    def reply(self, prompt: Prompt, plan: TraceRequest) -> Reply | Dropped:
        if self._worker is None:
            raise InternalError("a prompt before the target was prepared")
        text = self._rendered[prompt.id]
        ids = self._worker.tokenize(text)
        if not ids:
            return Dropped(prompt.id, "no tokens")
        if len(ids) + plan.max_tokens > self.context:
            return Dropped(
                prompt.id,
                f"its {len(ids)} tokens and {plan.max_tokens} more do not fit a context of "
                f"{self.context}",
            )
        said = self._worker.generate(
            ids,
            n_predict=plan.max_tokens,
            chain=plan.sampler,
            top=plan.top,
            extra=plan.extra,
        )
        return _as_reply(prompt, text, ids, said, plan)

    def _vocabulary_only(self) -> ModelInfo:
        if self._info is None:
            self._info = vocabulary_info(self.engine, self.source, self.supervisor)
        return self._info


def vocabulary_info(engine: Engine, source: Source, supervisor: Supervisor) -> ModelInfo:
    """What ``engine`` says of the tokens of ``source``, whose weights are not loaded."""
    from cook.engines.worker.messages import ModelLoad

    with Worker.open(engine, supervisor, name="vocabulary") as worker:
        return worker.load(ModelLoad(source.path, vocabulary_only=True))


def _as_reply(
    prompt: Prompt, text: str, ids: Sequence[int], said: Generation, plan: TraceRequest
) -> Reply:
    import numpy as np

    count = len(said.tokens)
    top_ids, top_logits = said.top_ids, said.top_logits
    if top_ids is None or top_logits is None:  # K = 0
        top_ids, top_logits = np.zeros((count, 0), np.int32), np.zeros((count, 0), np.float32)
    head = ReplyHead(
        id=prompt.id,
        category=prompt.category,
        half=prompt.half,
        rendered_sha256=sha256(text),
        seed=plan.sampler.seed,
        stop=said.stop,
        prompt_tokens=len(ids),
        tokens=count,
        emitted=said.emitted,
    )
    return Reply(
        head=head,
        prompt=np.array(ids, np.int32),
        tokens=said.tokens,
        known=np.ones(count, np.bool_),
        logp=said.logp,
        chain_logp=said.chain_logp,
        logsumexp=said.logsumexp,
        margin=said.margin,
        top_ids=top_ids,
        top_logp=top_logits - said.logsumexp[:, None],
    )
