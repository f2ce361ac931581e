"""A target behind a running ``llama-server``, asked by token ids.

What the server tells of itself is checked first. Drafting must be off there: with a draft loaded
mainline reports log-probability 0 for every drafted token (#27972); a server that drafts is
refused. Probabilities may be fewer than tokens, because entries are left out while the text ends
inside a UTF-8 character: they are joined on token ids, and what cannot be told apart is marked as
a hole (docs/internals/scoring.md#holes). ik's server returns no token ids, so its text is
tokenized again by the server itself, and a reply whose tokens do not come out the same in number
is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cook.engines.remote import Remote
from cook.engines.server_api import Completion
from cook.errors import InputError, StepError
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import Reply, ReplyHead, TraceHeader
from cook.formats.vocabulary import Vocabulary
from cook.prompts.prompt_set import Prompt
from cook.trace.chain import chain_logp
from cook.trace.session import Dropped, TraceRequest, sha256
from cook.trace.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cook.engines.server_api import Completion, TokenProbability
    from cook.formats.sampling import Sampling
    from cook.prompts.prompt_set import Half

_FALLBACK = "{%- for message in messages -%}"
"""How the template begins that llama-server of mainline shows for a model without one: ChatML."""
_FALLBACK_TOKEN = "<|im_start|>"
_MAX_CONTEXT = 1 << 26
_MAX_VOCABULARY = 1 << 24


@dataclass(frozen=True)
class ServerFacts:
    """What a server tells of itself. ``None`` is not told."""

    flavour: Flavour
    build: str
    model: str
    model_path: str | None
    context: int
    template: str | None
    vocabulary_size: int | None


def server_facts(remote: Remote, *, may_draft: bool = False) -> ServerFacts | None:
    """The facts of the llama-server at ``remote``; None when it is something else.

    InputError when it drafts, unless it may.
    """
    props = remote.get("/props")
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if not isinstance(props, dict) or not isinstance(settings, dict):
        return None
    if not may_draft:
        _refuse_drafting(remote)
    context = settings.get("n_ctx", props.get("n_ctx"))
    if not isinstance(context, int) or not 0 < context <= _MAX_CONTEXT:
        raise StepError(f"{remote.url} tells no context length in /props")
    build = props.get("build_info")
    path, template = props.get("model_path"), props.get("chat_template")
    path = path if isinstance(path, str) and path else None
    name = path.replace("\\", "/").rsplit("/", 1)[-1] if path else remote.url
    return ServerFacts(
        # only mainline tells its build
        flavour=Flavour.LLAMA_CPP if isinstance(build, str) else Flavour.IK_LLAMA_CPP,
        build=str(build)[:200] if isinstance(build, str) else "unknown",
        model=name[:1000],
        model_path=path,
        context=context,
        template=template if _is_own(template, remote) else None,
        vocabulary_size=_vocabulary_size(remote),
    )


def _is_own(template: Any, remote: Remote) -> bool:
    """Whether ``template`` is the model's: the fallback's marks are no tokens of most others."""
    if not isinstance(template, str) or not template:
        return False
    if not template.startswith(_FALLBACK) or _FALLBACK_TOKEN not in template:
        return True
    return len(remote.tokenize(_FALLBACK_TOKEN, add_special=False)) == 1


def _refuse_drafting(remote: Remote) -> None:
    slots = remote.get("/slots")
    if isinstance(slots, list) and any(
        isinstance(slot, dict) and slot.get("speculative") is True for slot in slots
    ):
        raise drafts_error(remote.url, "/slots says speculative")


def drafts_error(url: str, told: str) -> InputError:
    """The refusal of a server that drafts; ``told`` says where it shows."""
    return InputError(
        f"{url} drafts ({told}), and then its probabilities are not the target's",
        hint="start it without --spec-type and without a draft model while the trace is recorded",
    )


def _vocabulary_size(remote: Remote) -> int | None:
    models = remote.get("/v1/models")
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    meta = first.get("meta")
    size = meta.get("n_vocab") if isinstance(meta, dict) else None
    return size if isinstance(size, int) and 0 < size <= _MAX_VOCABULARY else None


_STOPS = {"eos": "eog", "limit": "limit", "word": "word"}


def align(tokens: Sequence[int], entries: Sequence[int | None]) -> list[int | None]:
    """For each token the entry that is its own, or None.

    ``entries`` are ids of a subsequence of ``tokens``. Where the leftmost and the rightmost way
    to fit them differ, the token's entry is not known. All None if they do not fit at all.
    """
    left = _fit(tokens, entries)
    reverse = _fit(list(reversed(tokens)), list(reversed(entries)))
    if left is None or reverse is None:
        return [None] * len(tokens)
    n, m = len(tokens), len(entries)
    first = dict(enumerate(left))
    last = {m - 1 - entry: n - 1 - at for entry, at in enumerate(reverse)}
    found: list[int | None] = [None] * n
    for entry, at in first.items():
        if last[entry] == at:
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
    prompt: Sequence[int],
    *,
    name: str,
    category: str,
    top: int,
    sampler: Sampling,
    half: Half | None = None,
    rendered_sha256: str = "",
) -> Reply:
    """The trace's reply from a server's answer to token ids with ``n_probs`` = ``top``.

    A server tells raw log-probabilities, so log-sum-exp is 0 (they are normalised already); those
    under the sampling chain follow from the stored candidates (:func:`chain_logp`). InputError
    when the server returned no token ids.
    """
    if completion.tokens is None:
        raise InputError(
            f"prompt {name}: this server returns no token ids",
            hint="record with llama-server of mainline, or with cook's own worker",
        )
    tokens = np.array(completion.tokens, np.int32)
    n = len(tokens)
    logp, margin = np.zeros(n, np.float32), np.zeros(n, np.float32)
    ids, values = np.full((n, top), -1, np.int32), np.full((n, top), -1e4, np.float32)
    entries = [p.chosen.id for p in completion.probabilities]
    known = np.zeros(n, np.bool_)
    for at, entry in enumerate(align(completion.tokens, entries)):
        if entry is None:
            continue
        known[at] = True
        one = completion.probabilities[entry]
        logp[at] = one.chosen.logprob
        _fill(one, ids[at], values[at])
        if top > 1:
            margin[at] = values[at, 0] - values[at, 1]
    return Reply(
        head=ReplyHead(
            id=name,
            category=category,
            half=half,
            rendered_sha256=rendered_sha256,
            seed=sampler.seed,
            stop=_STOPS.get(completion.stop, "context"),
            prompt_tokens=len(prompt),
            tokens=n,
            emitted=n,
        ),
        prompt=np.array(prompt, np.int32),
        tokens=tokens,
        known=known,
        logp=logp,
        chain_logp=chain_logp(sampler, tokens, logp, ids, values),
        logsumexp=np.zeros(n, np.float32),
        margin=margin,
        top_ids=ids,
        top_logp=values,
    )


def _fill(
    one: TokenProbability,
    ids: np.ndarray[tuple[int], np.dtype[np.int32]],
    values: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> None:
    for k, candidate in enumerate(one.top[: len(ids)]):
        if candidate.id is not None and np.isfinite(candidate.logprob):
            ids[k], values[k] = candidate.id, candidate.logprob


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

    def header(self, plan: TraceRequest) -> TraceHeader:
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

    def reply(self, prompt: Prompt, plan: TraceRequest) -> Reply | Dropped:
        plan = replace(plan, sampler=plan.sampler.for_prompt(prompt.id))
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

    def _ask(self, ids: Sequence[int], plan: TraceRequest, n_predict: int) -> Completion:
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
            self._require_known([t.id for t in (one.chosen, *one.top) if t.id is not None])
        return answer

    def _require_known(self, tokens: Sequence[int]) -> None:
        size = self.facts.vocabulary_size or (self.tokenizer.size if self.tokenizer else None)
        if size is not None and any(token >= size for token in tokens):
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

    def _beyond(self, reply: Reply, plan: TraceRequest) -> Reply:
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
