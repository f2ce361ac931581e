"""A target that runs here, in cook's own worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cook.closing import Closing
from cook.engines.base import Engine, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InternalError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.trace_file import Reply, TokenizerFacts, TraceHeader
from cook.formats.vocabulary import Vocabulary, read_vocabulary
from cook.graph.step import Source
from cook.prompts.prompt_set import Prompt
from cook.trace.session import Dropped, TracePlan, prompts_digest, reply_head, sha256


@dataclass
class WorkerTarget(Closing):
    """``source`` through one of ``workers``, of ``engine``; a context manager that gives it back.

    ``chat``: prompts are rendered by the target's own template, as its server does it.
    """

    engine: Engine
    source: Source
    args: ModelArgs
    context: int
    chat: bool
    supervisor: Supervisor
    workers: KeptWorkers
    _rendered: dict[str, str] = field(default_factory=dict)
    _held: ExitStack = field(default_factory=ExitStack)
    _worker: Worker | None = None

    def close(self) -> None:
        self._held.close()

    @cached_property
    def file(self) -> GgufFile:
        """The target's header."""
        return read_gguf(self.source.path)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.file)

    def header(self, plan: TracePlan) -> TraceHeader:
        load = ModelLoad(self.source.path, vocabulary_only=True)
        with self.workers.loaded(self.engine, load) as (_, info):
            pass
        identity = self.engine.identity
        template = self.file.string("tokenizer.chat_template") if self.chat else None
        return TraceHeader(
            target_name=self.source.path.name,
            target_sha256=self.source.digest,
            tokenizer_sha256=self.vocabulary.digest,
            tokenizer=TokenizerFacts.of(self.vocabulary),
            template_sha256=sha256(template or ""),
            prompts_sha256=prompts_digest(plan.prompts),
            vocabulary_size=info.n_vocab,
            eog=tuple(sorted(info.eog)),
            flavour=str(self.engine.flavour),
            engine_build=identity.build,
            engine_digest=identity.digest,
            device="gpu" if self.args.n_gpu_layers else "cpu",
            cache_type_k=self.args.cache_type_k or "f16",
            cache_type_v=self.args.cache_type_v or "f16",
            context=plan.context,
            batch_width=plan.batch_width,
            n_predict=plan.max_tokens,
            extra_tokens=plan.extra,
            top=plan.top,
            sampler=plan.sampler,
        )

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Render the prompts, then load the model."""
        if self.chat:
            from cook.trace.rendering import render_prompts

            path, extra = self.source.path, self.args.extra
            texts = render_prompts(self.engine, path, extra, prompts, self.supervisor)
        else:
            texts = [p.untemplated for p in prompts]
        self._rendered = {p.id: text for p, text in zip(prompts, texts, strict=True)}
        load = model_load(self.engine, self.source.path, self.args, self.context)
        self._worker, _ = self._held.enter_context(self.workers.loaded(self.engine, load))

    def reply(self, prompt: Prompt, plan: TracePlan) -> Reply | Dropped:
        plan = replace(plan, sampler=plan.sampler.for_prompt(prompt.id))
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
        reply = self._worker.generate(
            ids,
            n_predict=plan.max_tokens,
            chain=plan.sampler,
            top=plan.top,
            extra=plan.extra,
            width=plan.batch_width,
        )
        count = len(reply.tokens)
        top_ids, top_logits = reply.top_ids, reply.top_logits
        if top_ids is None or top_logits is None:  # K = 0
            top_ids, top_logits = np.zeros((count, 0), np.int32), np.zeros((count, 0), np.float32)
        return Reply(
            head=reply_head(prompt, text, ids, plan, reply.stop, count, reply.emitted),
            prompt=np.array(ids, np.int32),
            tokens=reply.tokens,
            known=np.ones(count, np.bool_),
            logp=reply.logp,
            chain_logp=reply.chain_logp,
            logsumexp=reply.logsumexp,
            margin=reply.margin,
            top_ids=top_ids,
            top_logp=top_logits - reply.logsumexp[:, None],
        )
