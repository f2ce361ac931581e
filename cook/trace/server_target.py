"""A target behind a running ``llama-server``, asked by token ids.

What the server states of itself is checked first. Drafting must be off there: with a draft loaded
mainline reports log-probability 0 for every drafted token (#27972); a server that drafts is
refused. Probabilities may be fewer than tokens, because entries are left out while the text ends
inside a UTF-8 character: they are joined on token ids, and what is ambiguous is marked as
a hole (docs/internals/scoring.md#holes). ik's server returns no token ids, so its text is
tokenized again by the server itself, and a reply whose tokens do not come out the same in number
is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.engines.server_api import Completion, Remote
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InputError, StepError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import Reply, TokenizerFacts, TraceHeader
from cook.formats.vocabulary import Vocabulary, read_vocabulary
from cook.prompts.prompt_set import Prompt
from cook.trace.chain import chain_logp
from cook.trace.session import Dropped, TracePlan, prompts_digest, reply_head, sha256

_FALLBACK = "{%- for message in messages -%}"
"""How the template begins that llama-server of mainline shows for a model without one: ChatML."""
_FALLBACK_TOKEN = "<|im_start|>"
_MAX_CONTEXT = 1 << 26
_MAX_VOCABULARY = 1 << 24


@dataclass(frozen=True)
class ServerFacts:
    """What a server states of itself; None is not stated."""

    flavour: Flavour
    build: str
    model: str
    model_path: str | None
    context: int
    template: str | None
    vocabulary_size: int | None


def server_facts(remote: Remote, *, may_draft: bool = False) -> ServerFacts | None:
    """The facts of the llama-server at ``remote``; None when it is something else.

    InputError when it drafts, unless it may, and for a router that is asked for none of its models.
    """
    names = [name for model in _served(remote) for name in _names(model)]
    if remote.model is not None and names and remote.model not in names:
        raise InputError(
            f"{remote.url} has no model {remote.model!r}", hint=f"it has {', '.join(names[:40])}"
        )
    props = remote.get("/props")
    if isinstance(props, dict) and props.get("role") == "router":
        raise InputError(
            f"{remote.url} is a router of several models",
            hint=f"--model NAME chooses one: {', '.join(names[:40])}",
        )
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if not isinstance(props, dict) or not isinstance(settings, dict):
        return None
    slots = None if may_draft else remote.get("/slots")
    if isinstance(slots, list) and any(
        isinstance(slot, dict) and slot.get("speculative") is True for slot in slots
    ):
        raise drafts_error(remote.url, "/slots says speculative")
    context = settings.get("n_ctx", props.get("n_ctx"))
    if not isinstance(context, int) or not 0 < context <= _MAX_CONTEXT:
        raise StepError(f"{remote.url} states no context length in /props")
    build, path, template = (
        value if isinstance(value, str) and value else None
        for value in map(props.get, ("build_info", "model_path", "chat_template"))
    )
    # The fallback's marks are no tokens of most models.
    if template and template.startswith(_FALLBACK) and _FALLBACK_TOKEN in template:
        is_own = len(remote.tokenize(_FALLBACK_TOKEN, add_special=False)) == 1
        template = template if is_own else None
    return ServerFacts(
        # Only mainline states its build.
        flavour=Flavour.LLAMA_CPP if build is not None else Flavour.IK_LLAMA_CPP,
        build=build[:200] if build is not None else "unknown",
        model=(path.replace("\\", "/").rsplit("/", 1)[-1] if path else remote.url)[:1000],
        model_path=path,
        context=context,
        template=template,
        vocabulary_size=_vocabulary_size(remote),
    )


def drafts_error(url: str, sign: str) -> InputError:
    """The refusal of a server that drafts; ``sign`` says where it shows."""
    return InputError(
        f"{url} drafts ({sign}), and then its probabilities are not the target's",
        hint="start it without --spec-type and without a draft model while the trace is recorded",
    )


def _served(remote: Remote) -> list[dict[str, Any]]:
    """What a server lists of its models: one, or all of a router's."""
    answer = remote.get("/v1/models")
    listed = answer.get("data") if isinstance(answer, dict) else None
    return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []


def _names(model: Mapping[str, Any]) -> list[str]:
    """Names by which a request may call the model: its id and its aliases."""
    aliases = model.get("aliases")
    found = [model.get("id"), *(aliases if isinstance(aliases, list) else ())]
    return [name for name in found if isinstance(name, str)]


def _vocabulary_size(remote: Remote) -> int | None:
    for model in _served(remote):  # again: a router knows more of one that it has loaded
        if remote.model is None or remote.model in _names(model):
            meta = model.get("meta")
            found = meta.get("n_vocab") if isinstance(meta, dict) else None
            return found if isinstance(found, int) and 0 < found <= _MAX_VOCABULARY else None
    return None


_STOPS = {"eos": "eog", "limit": "limit", "word": "word"}


def align(tokens: Sequence[int], entries: Sequence[int | None]) -> list[int | None]:
    """For each token the entry that is its own, or None.

    ``entries`` are ids of a subsequence of ``tokens``. Where the leftmost and the rightmost way
    to fit them differ, the token's entry is not known. All None if they do not fit at all.
    """
    found: list[int | None] = [None] * len(tokens)
    first = _fit(tokens, entries)
    last = _fit(tokens[::-1], entries[::-1])
    if first is not None and last is not None:
        for entry, (at, from_end) in enumerate(zip(first, reversed(last), strict=True)):
            if at == len(tokens) - 1 - from_end:
                found[at] = entry
    return found


def _fit(tokens: Sequence[int], entries: Sequence[int | None]) -> list[int] | None:
    """Position of each entry, as early as possible."""
    places, at = [], 0
    for entry in entries:
        while at < len(tokens) and tokens[at] != entry:
            at += 1
        if at == len(tokens):
            return None
        places.append(at)
        at += 1
    return places


def reply_of_completion(
    completion: Completion,
    prompt: Prompt,
    text: str,
    ids: Sequence[int],
    plan: TracePlan,
    beyond: Sequence[int] = (),
) -> Reply:
    """The trace's reply from a server's answer to ``ids``, the tokens of ``text``, with
    ``n_probs`` = ``plan.top``; ``beyond`` are tokens past its end, without probabilities.

    A server states raw log-probabilities, so log-sum-exp is 0 (they are normalised already); those
    under the sampling chain follow from the stored candidates (:func:`chain_logp`). InputError
    when the server returned no token ids.
    """
    if completion.tokens is None:
        raise InputError(
            f"prompt {prompt.id}: this server returns no token ids",
            hint="record with llama-server of mainline, or with cook's own worker",
        )
    top = plan.top
    tokens = np.array([*completion.tokens, *beyond], np.int32)
    n = len(tokens)
    logp, margin = np.zeros(n, np.float32), np.zeros(n, np.float32)
    top_ids, values = np.full((n, top), -1, np.int32), np.full((n, top), -1e4, np.float32)
    known = np.zeros(n, np.bool_)
    entries = [one.id for one in completion.probabilities]
    for at, entry in enumerate(align(completion.tokens, entries)):
        if entry is None:
            continue
        known[at] = True
        one = completion.probabilities[entry]
        logp[at] = one.logprob
        for k, candidate in enumerate(one.top_logprobs[:top]):
            top_ids[at, k], values[at, k] = candidate.id, candidate.logprob
        if top > 1:
            margin[at] = values[at, 0] - values[at, 1]
    stop = _STOPS.get(completion.stop, "context")
    return Reply(
        head=reply_head(prompt, text, ids, plan, stop, n, len(completion.tokens)),
        prompt=np.array(ids, np.int32),
        tokens=tokens,
        known=known,
        logp=logp,
        chain_logp=chain_logp(plan.sampler, tokens, logp, top_ids, values),
        logsumexp=np.zeros(n, np.float32),
        margin=margin,
        top_ids=top_ids,
        top_logp=values,
    )


class Tokenizer(Closing):
    """The tokenizer of the GGUF at ``path`` through ``engine``, its weights left on the disk; a
    context manager."""

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

    def header(self, plan: TracePlan) -> TraceHeader:
        tokenizer, facts = self.tokenizer, self.facts
        if self._size is None:
            raise InputError(
                f"{self.remote.url} does not state the size of its vocabulary",
                hint="give the target's file, or one with its tokenizer: --tokenizer GGUF",
            )
        return TraceHeader(
            target_name=facts.model,
            target_sha256=None,
            tokenizer_sha256=tokenizer.vocabulary.digest if tokenizer else None,
            tokenizer=TokenizerFacts.of(tokenizer.vocabulary) if tokenizer else None,
            template_sha256=sha256(self._template or ""),
            prompts_sha256=prompts_digest(plan.prompts),
            vocabulary_size=self._size,
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

    def reply(self, prompt: Prompt, plan: TracePlan) -> Reply | Dropped:
        plan = replace(plan, sampler=plan.sampler.for_prompt(prompt.id))
        text = self._rendered(prompt)
        ids = self.remote.tokenize(text, add_special=True)
        self._require_known(ids)
        if not ids:
            return Dropped(prompt.id, "no tokens")
        if len(ids) + plan.max_tokens > (context := min(plan.context, self.facts.context)):
            return Dropped(
                prompt.id,
                f"its {len(ids)} tokens and {plan.max_tokens} more do not fit the context of "
                f"{context}",
            )
        answer = self._ask(ids, plan, plan.max_tokens)
        if answer.tokens is None:
            found = self._tokenized_again(answer)
            if isinstance(found, str):
                return Dropped(prompt.id, found)
            answer = replace(answer, tokens=found, probabilities=())
        if not answer.tokens:
            return Dropped(prompt.id, "the server wrote nothing")
        beyond = self._beyond(ids, answer.tokens, plan) if answer.stop == "eos" else []
        return reply_of_completion(answer, prompt, text, ids, plan, beyond)

    @property
    def _template(self) -> str | None:
        """The template that prompts are rendered by: the file's word is better than the server's,
        which shows one for every model."""
        if self.raw or (self.tokenizer is not None and self.tokenizer.template is None):
            return None
        return self.facts.template

    def _rendered(self, prompt: Prompt) -> str:
        if self._template is None:
            return prompt.untemplated
        return self.remote.apply_template(prompt.messages)

    def _ask(self, ids: Sequence[int], plan: TracePlan, n_predict: int) -> Completion:
        payload: dict[str, object] = {
            **plan.sampler.whole_request(),
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
        if answer.speculators:
            raise drafts_error(self.remote.url, f"by {', '.join(answer.speculators)}")
        if answer.predicted_n > n_predict or len(answer.tokens or ()) > n_predict:
            raise StepError(
                f"{self.remote.url} wrote {answer.predicted_n} tokens for the {n_predict} asked for"
            )
        self._require_known(answer.tokens or ())
        for one in answer.probabilities:
            self._require_known([t.id for t in (one, *one.top_logprobs)])
        return answer

    def _require_known(self, tokens: Sequence[int]) -> None:
        size = self._size
        if size is not None and any(token >= size for token in tokens):
            raise StepError(f"{self.remote.url} sent a token beyond its vocabulary of {size}")

    @property
    def _size(self) -> int | None:
        return self.facts.vocabulary_size or (self.tokenizer.size if self.tokenizer else None)

    def _tokenized_again(self, answer: Completion) -> tuple[int, ...] | str:
        """Ids of a reply sent as text only, by the server's own tokenizer; else what is wrong."""
        found = self.remote.tokenize(answer.text, add_special=False)
        if self.remote.detokenize(found) != answer.text:
            return "its reply is another text after tokenizing and back"
        missing = answer.predicted_n - len(found)
        eos = self.tokenizer.vocabulary.eos if self.tokenizer else None
        if missing == 1 and answer.stop == "eos" and eos is not None:
            return (*found, eos)
        if missing:
            return f"its reply is {len(found)} tokens here, {answer.predicted_n} there"
        return found

    def _beyond(self, ids: Sequence[int], tokens: Sequence[int], plan: TracePlan) -> list[int]:
        """``plan.extra`` tokens past the end of a reply, since ik counts drafts there: what the
        target writes when it is asked to go on."""
        text, more = [*ids, *tokens], list[int]()
        for _ in range(_CONTINUATIONS):
            room = min(plan.context, self.facts.context) - len(text) - len(more) - 1
            want = min(plan.extra - len(more), room)
            got = self._ask([*text, *more], replace(plan, top=0), want).tokens if want > 0 else None
            if not got:
                break
            more += got
        return more
