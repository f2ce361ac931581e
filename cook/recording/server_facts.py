"""What a running ``llama-server`` tells of itself, checked; one that drafts is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cook.engines.base import Flavour
from cook.engines.remote import Remote
from cook.errors import InputError, StepError

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
