"""A target behind an OpenAI-style endpoint, which tells greedy text and no token ids.

Only text that tokenizes the same way here and there can be replayed: the ids of prompt and reply
must detokenize to the very text, and be as many as the endpoint counted. Other prompts are
dropped, and it is said which.

The chat template is rendered here. It comes from a model's file, so it runs in jinja2's immutable
sandbox, as transformers runs it, and its output is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cook.engines.remote import Remote
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.trace_file import Reply, ReplyHead, TraceHeader
from cook.formats.vocabulary import Vocabulary
from cook.prompts.prompt_set import Prompt
from cook.trace.session import Dropped, TraceRequest, sha256
from cook.trace.tokenizer import Tokenizer

MAX_BYTES = 8 << 20


def render(template: str, message: str, bos: str, eos: str) -> str:
    """``message`` as the first user turn, ready for the reply; InputError for a bad template."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise PrerequisiteError(
            "jinja2 is needed to render chat templates", hint="pip install jinja2"
        ) from None

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(told: object) -> Any:
        raise TemplateError(str(told))

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        text = environment.from_string(template).render(
            messages=[{"role": "user", "content": message}],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
        )
    # a template is a program of somebody else's: whatever it raises is its fault
    except Exception as error:
        raise InputError(f"the chat template cannot be rendered: {str(error)[:200]}") from None
    if len(text) > MAX_BYTES:
        raise InputError(f"the chat template makes more than {MAX_BYTES} characters of one prompt")
    # the tokenizer adds BOS by itself
    return text.removeprefix(bos) if bos else text


def model_name(remote: Remote) -> str | None:
    """The first model that the endpoint lists; None when it lists none."""
    models = remote.get("/v1/models")
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    name = first.get("id")
    return name[:1000] if isinstance(name, str) and name else None


@dataclass
class TextTarget:
    """``model`` at ``remote`` (its address without ``/v1``), tokenized with ``tokenizer``."""

    remote: Remote
    model: str
    tokenizer: Tokenizer
    raw: bool = False

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary

    def header(self, plan: TraceRequest) -> TraceHeader:
        if plan.sampler.temperature:
            raise InputError(
                f"{self.remote.url} tells text only: such a trace is greedy",
                hint="--temperature 0, or record from llama-server by token ids",
            )
        return TraceHeader(
            target_name=self.model,
            target_sha256=None,
            tokenizer_sha256=self.vocabulary.digest,
            tokenizer=self.tokenizer.facts,
            template_sha256=sha256(self._template or ""),
            prompts_sha256=plan.prompts_sha256,
            vocabulary_size=self.tokenizer.size,
            eog=tuple(sorted(self.tokenizer.eog)),
            flavour="unknown",
            engine_build="unknown",
            engine_digest=None,
            device=None,
            cache_type_k=None,
            cache_type_v=None,
            context=plan.context,
            n_predict=plan.max_tokens,
            extra_tokens=0,
            top=0,
            sampler=plan.sampler,
            source="text",
        )

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Nothing to prepare."""

    def reply(self, prompt: Prompt, plan: TraceRequest) -> Reply | Dropped:
        rendered = self._rendered(prompt.text)
        ids = self.tokenizer.tokenize(rendered)
        if not ids or len(ids) + plan.max_tokens > plan.context:
            return Dropped(prompt.id, f"its {len(ids)} tokens do not fit the context")
        answer = self.remote.post(
            "/v1/completions",
            {
                "model": self.model,
                "prompt": rendered,
                "max_tokens": plan.max_tokens,
                "temperature": 0,
                "seed": plan.sampler.seed,
                "stream": False,
            },
        )
        text, ended, counted = _parsed(answer, self.remote.url)
        found = self._tokens(rendered, ids, text)
        if isinstance(found, str):
            return Dropped(prompt.id, found)
        # an endpoint that counts the end of generation counts a token that it does not show
        if counted is not None and counted - len(found) not in ((0, 1) if ended else (0,)):
            return Dropped(prompt.id, f"its reply is {len(found)} tokens here, {counted} there")
        eos = self.vocabulary.eos
        if ended and eos is not None:
            found = (*found, eos)
        if not found:
            return Dropped(prompt.id, "the endpoint wrote nothing")
        return _as_reply(prompt, rendered, ids, found, "eog" if ended else "limit")

    @property
    def _template(self) -> str | None:
        return None if self.raw else self.tokenizer.template

    def _rendered(self, message: str) -> str:
        if self._template is None:
            return message
        tokens = self.vocabulary.tokens
        bos, eos = (
            "" if token is None else tokens[token].decode(errors="replace")
            for token in (self.vocabulary.bos, self.vocabulary.eos)
        )
        return render(self._template, message, bos if self.vocabulary.add_bos else "", eos)

    def _tokens(self, rendered: str, prompt: Sequence[int], text: str) -> tuple[int, ...] | str:
        """Ids of ``text`` after its prompt, or why they cannot be known."""
        whole = self.tokenizer.tokenize(rendered + text)
        if whole[: len(prompt)] != tuple(prompt):
            return "the end of its prompt and the start of its reply make one token here"
        found = whole[len(prompt) :]
        if not self.tokenizer.detokenize(whole).endswith(text):
            return "its reply is another text after tokenizing and back"
        if self.tokenizer.tokenize(self.tokenizer.detokenize(found), add_special=False) != found:
            return "its reply has other tokens after tokenizing and back"
        return found


def _parsed(answer: Mapping[str, Any], url: str) -> tuple[str, bool, int | None]:
    """(text, ended by itself, tokens counted) of a completion; StepError for another form."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    text = first.get("text") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(text, str):
        raise StepError(f"{url} answered /v1/completions without a text")
    usage = answer.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    known = isinstance(counted, int) and not isinstance(counted, bool) and counted >= 0
    return text, first.get("finish_reason") == "stop", counted if known else None


def _as_reply(
    prompt: Prompt, rendered: str, ids: Sequence[int], tokens: Sequence[int], stop: Any
) -> Reply:
    head = ReplyHead(
        id=prompt.id,
        category=prompt.category,
        half=prompt.half,
        rendered_sha256=sha256(rendered),
        stop=stop,
        prompt_tokens=len(ids),
        tokens=len(tokens),
        emitted=len(tokens),
    )
    return Reply.of_tokens(head, ids, tokens)
