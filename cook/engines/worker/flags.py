"""Raw flags in the library's own words: what the servers do with each, done by the worker.

The column ``replay`` of ``options.tsv`` says it for every harmless option: ``server`` (it concerns
the server alone: it changes no token and no decode of the library), ``no: WHY`` (the worker cannot
follow it), or parameters of the library with blanks between them:

- ``NAME`` gets the flag's value, ``NAME,NAME`` each its part of a value with commas;
- ``NAME=1`` gets that number or type, ``NAME=on`` 1, or 0 from a negated spelling (``--no-...``),
  ``NAME=off`` the opposite;
- ``NAME=word:1,other:2`` gets the number that stands for the value;
- ``@rule`` is one of :data:`_RULES`.

Read from ``common_model_params_to_llama`` and ``common_context_params_to_llama`` and the parsers of
both engines, at the versions that :mod:`cook.engines.options` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cook.engines.options import OPTIONS, Option, ParsedFlag, read_flags
from cook.engines.worker.messages import LibraryParameter, ModelLoad
from cook.errors import PrerequisiteError
from cook.formats.quant_types import Flavour

_SERVER_ONLY = "server"
_UNABLE = "no: "


def follow(flavour: Flavour, words: Sequence[str], load: ModelLoad, model: str) -> ModelLoad:
    """``load`` as raw flags change it; those of the server alone change nothing.

    PrerequisiteError, naming the flag, for one that replay and timing of ``model`` cannot follow.
    """
    found = read_flags(words, [flavour])
    if found.refusals:
        why = "cook knows no parameter of the library for it"
        raise _cannot_follow(model, words[found.refusals[0].index], why)
    for parsed in found.flags:
        rule = OPTIONS[flavour][parsed.flag].replay
        if rule.startswith(_UNABLE):
            raise _cannot_follow(model, parsed.flag, rule.removeprefix(_UNABLE))
        if rule.startswith("@"):
            load = _RULES[rule](load, parsed)
        elif rule != _SERVER_ONLY:
            values = (pair for part in rule.split() for pair in _values(part, parsed))
            load = _with_values(load, parsed, dict(values))
    return load


def in_replay(option: Option) -> str:
    """For people: what replay and timings do about a harmless ``option``."""
    if option.replay.startswith(_UNABLE):
        return option.replay
    return "without it" if option.replay == _SERVER_ONLY else "yes"


def of_the_server(flavour: Flavour, words: Sequence[str]) -> tuple[str, ...]:
    """The raw flags among ``words`` that replay and timing go without."""
    flags = read_flags(words, [flavour]).flags
    return tuple(f.flag for f in flags if f.option.replay == _SERVER_ONLY)


def _cannot_follow(model: str, flag: str, why: str) -> PrerequisiteError:
    return PrerequisiteError(
        f"{model}: replay and timing cannot follow `{flag}`: {why}",
        hint="it can be scored live only: `score: {method: live}`",
    )


def _values(part: str, parsed: ParsedFlag) -> Iterator[tuple[str, float | str]]:
    """The parameters that ``part`` of a rule sets, with their values."""
    names, is_set, to = part.partition("=")
    value = parsed.value or ""
    if ":" in to:
        yield names, int(dict(choice.split(":") for choice in to.split(","))[value])
    elif to in ("on", "off"):
        negated = parsed.flag.startswith(("-n", "--no-"))
        yield names, int((to == "on") != negated)
    else:
        parts = [to] if is_set else value.split(",") if "," in names else [value]
        for name, text in zip(names.split(","), parts, strict=True):
            number = 0.0 if "type" in name else float(text)  # a type stays a word
            yield name, text if "type" in name else int(number) if number.is_integer() else number


def _with_values(
    load: ModelLoad, parsed: ParsedFlag, values: Mapping[str, float | str]
) -> ModelLoad:
    more = tuple(LibraryParameter(name, value, parsed.flag) for name, value in values.items())
    return replace(load, parameters=(*load.parameters, *more))


def _tensor_split(load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    return replace(load, tensor_split=(parsed.value or "").replace("/", ","))


def _numa(load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    return replace(load, numa=("distribute", "isolate", "numactl").index(parsed.value or "") + 1)


def _dense_ffn_on_cpu(load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    """LLM_FFN_DENSE_REGEX of mainline's common.h."""
    layers = "|".join(str(i) for i in range(int(parsed.value or 0)))
    return replace(load, overrides=(*load.overrides, rf"blk\.({layers})\.ffn_(up|down|gate)\.=CPU"))


def _rope_scale(load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    scale = 1.0 / float(parsed.value or 0)
    return _with_values(load, parsed, {"context.rope_freq_scale": scale})


def _attention_buffer(load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    """ik raises smaller buffers of attention."""
    mib = int(parsed.value or 0)
    names = ("model.amb", "context.attn_max_batch")
    return _with_values(load, parsed, dict.fromkeys(names, mib and max(mib, 128)))


_RULES: Mapping[str, Callable[[ModelLoad, ParsedFlag], ModelLoad]] = {
    "@tensor_split": _tensor_split,
    "@numa": _numa,
    "@dense_ffn_on_cpu": _dense_ffn_on_cpu,
    "@rope_scale": _rope_scale,
    "@attention_buffer": _attention_buffer,
}
"""What a flag makes of a load where that is more than parameters."""
