"""A target behind a running ``llama-server``, asked by token ids.

Drafting must be off there: with a draft loaded mainline reports log-probability 0 for drafted
tokens. ik's server returns no token ids, so its text is tokenized again by the server itself,
and a reply whose tokens do not come out the same in number is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cook.engines.client import Completion
from cook.engines.remote import Remote
from cook.errors import InputError, StepError
from cook.formats.trace import Reply
from cook.formats.trace_schema import TraceHeader
from cook.prompts.load import Prompt
from cook.recording.answer import reply_of_completion
from cook.recording.chain import request_of
from cook.recording.server_facts import ServerFacts, drafts_error
from cook.recording.session import Dropped, Plan, sha256
from cook.recording.tokenizer import Tokenizer
from cook.vocabulary import Vocabulary

_CONTINUATIONS = 8
"""Requests to write on past an end of reply: each may end again after a few tokens."""


@dataclass
class ServerTarget:
    """The llama-server at ``remote``. ``raw``: prompts are sent without its chat template.

    ``tokenizer`` is the target's GGUF, or one with the same tokenizer, where there is one.
    """

    remote: Remote
    facts: ServerFacts
    tokenizer: Tokenizer | None
    raw: bool = False

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self.tokenizer.vocabulary if self.tokenizer else None

    def header(self, plan: Plan) -> TraceHeader:
        tokenizer, facts = self.tokenizer, self.facts
        size = facts.vocabulary_size or (tokenizer.size if tokenizer else None)
        if size is None:
            raise InputError(
                f"{self.remote.url} does not tell the size of its vocabulary",
                hint="give the target's file, or one with its tokenizer: --tokenizer GGUF",
            )
        return TraceHeader(
            target_name=facts.model,
            target_sha256=None,
            tokenizer_sha256=tokenizer.vocabulary.digest if tokenizer else None,
            tokenizer=tokenizer.facts if tokenizer else None,
            template_sha256=sha256(self._template or ""),
            prompts_sha256=plan.prompts_sha256,
            vocabulary_size=size,
            eog=tuple(sorted(tokenizer.eog)) if tokenizer else (),
            flavour=str(facts.flavour),
            engine_build=facts.build,
            engine_digest=None,
            device=None,
            cache_type_k=None,
            cache_type_v=None,
            context=min(plan.context, facts.context),
            n_predict=plan.max_tokens,
            extra_tokens=plan.extra,
            top=plan.top,
            sampler=plan.sampler,
            source="server",
        )

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Check that the server and the tokenizer at hand agree on the first prompt."""
        if self.tokenizer is None:
            return
        text = self._rendered(prompts[0])
        theirs = self.remote.tokenize(text, add_special=True)
        ours = self.tokenizer.tokenize(text)
        if theirs != ours:
            raise InputError(
                f"{self.remote.url} tokenizes prompt {prompts[0].id} into other ids than "
                f"{self.tokenizer.path} ({len(theirs)} and {len(ours)} tokens)",
                hint="--tokenizer must be the target's own",
            )

    def reply(self, prompt: Prompt, plan: Plan) -> Reply | Dropped:
        text = self._rendered(prompt)
        ids = self.remote.tokenize(text, add_special=True)
        self._require_known(ids)
        if not ids:
            return Dropped(prompt.id, "no tokens")
        if len(ids) + plan.max_tokens > self.facts.context:
            return Dropped(
                prompt.id,
                f"its {len(ids)} tokens and {plan.max_tokens} more do not fit the server's "
                f"context of {self.facts.context}",
            )
        answer = self._ask(ids, plan, plan.max_tokens)
        if answer.tokens is None:
            found = self._tokenized_again(ids, answer)
            if isinstance(found, str):
                return Dropped(prompt.id, found)
            answer = replace(answer, tokens=found, probabilities=())
        if not answer.tokens:
            return Dropped(prompt.id, "the server wrote nothing")
        reply = reply_of_completion(
            answer,
            ids,
            name=prompt.id,
            category=prompt.category,
            top=plan.top,
            sampler=plan.sampler,
            half=prompt.half,
            rendered_sha256=sha256(text),
        )
        return self._beyond(reply, plan) if reply.head.stop == "eog" else reply

    @property
    def _template(self) -> str | None:
        """The template that prompts are rendered by: the file's word is better than the server's,
        which shows one for every model."""
        if self.raw or (self.tokenizer is not None and self.tokenizer.template is None):
            return None
        return self.facts.template

    def _rendered(self, prompt: Prompt) -> str:
        return prompt.text if self._template is None else self.remote.apply_template(prompt.text)

    def _ask(self, ids: Sequence[int], plan: Plan, n_predict: int) -> Completion:
        payload: dict[str, object] = {
            **request_of(plan.sampler),
            "prompt": list(ids),
            "n_predict": n_predict,
            "n_probs": plan.top,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": False,
            "ignore_eos": False,
        }
        answer = self.remote.complete(payload)
        if answer.draft_n is not None:
            raise drafts_error(self.remote.url, "its timings have draft_n")
        if answer.predicted_n > n_predict or len(answer.tokens or ()) > n_predict:
            raise StepError(
                f"{self.remote.url} wrote {answer.predicted_n} tokens for the {n_predict} asked for"
            )
        self._require_known(answer.tokens or ())
        for one in answer.probabilities:
            self._require_known([t.id for t in (one.chosen, *one.top) if t.id is not None])
        return answer

    def _require_known(self, tokens: Sequence[int]) -> None:
        size = self.facts.vocabulary_size or (self.tokenizer.size if self.tokenizer else 0)
        if any(token >= size for token in tokens):
            raise StepError(f"{self.remote.url} told a token beyond its vocabulary of {size}")

    def _tokenized_again(self, ids: Sequence[int], answer: Completion) -> tuple[int, ...] | str:
        """Ids of a reply told as text only, by the server's own tokenizer; else what is wrong."""
        found = self.remote.tokenize(answer.text, add_special=False)
        if self.remote.detokenize(found) != answer.text:
            return "its reply is another text after tokenizing and back"
        missing = answer.predicted_n - len(found)
        if missing == 1 and answer.stop == "eos" and (eos := self._end_token()) is not None:
            return (*found, eos)
        if missing:
            return f"its reply is {len(found)} tokens here, {answer.predicted_n} there"
        return found

    def _end_token(self) -> int | None:
        return self.tokenizer.vocabulary.eos if self.tokenizer else None

    def _beyond(self, reply: Reply, plan: Plan) -> Reply:
        """``reply`` with ``plan.extra`` tokens past its end: ik counts drafts there.

        They are what the target writes on being asked to go on; their probabilities are left out.
        """
        text = [*reply.prompt.tolist(), *reply.tokens.tolist()]
        more: list[int] = []
        for _ in range(_CONTINUATIONS):
            want = min(plan.extra - len(more), self.facts.context - len(text) - 1)
            if want <= 0:
                break
            got = self._ask(text, replace(plan, top=0), want).tokens
            if not got:
                break
            more += got
            text += got
        return _lengthened(reply, more)


def _lengthened(reply: Reply, more: Sequence[int]) -> Reply:
    count = len(more)
    if not count:
        return reply

    def zeros(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([column, np.zeros((count, *column.shape[1:]), column.dtype)])

    return replace(
        reply,
        head=reply.head.model_copy(update={"tokens": reply.head.tokens + count}),
        tokens=np.concatenate([reply.tokens, np.array(more, np.int32)]),
        known=zeros(reply.known),
        logp=zeros(reply.logp),
        chain_logp=zeros(reply.chain_logp),
        logsumexp=zeros(reply.logsumexp),
        margin=zeros(reply.margin),
        top_ids=np.concatenate(
            [reply.top_ids, np.full((count, reply.top_ids.shape[1]), -1, "<i4")]
        ),
        top_logp=np.concatenate(
            [reply.top_logp, np.full((count, reply.top_logp.shape[1]), -1e4, "<f4")]
        ),
    )
