"""The options of the engines' tools, reviewed one by one: which raw flags a recipe may have.

Recipes and records are shared between strangers, and ``extra`` reaches a program that can
download over the user's model, write files, load libraries, or listen to the world. So ``extra``
takes only what ``options.tsv`` calls harmless: placement, performance, memory, numerics and the
rendering of prompts, each with a value of a fixed form. Everything else is refused with its
reason; an option that is not in the table is refused too, even if the binary accepts it.

Reviewed: llama.cpp as bundled with llama-cpp-python 0.3.36 (``common/arg.cpp``) and ik_llama.cpp
8337e4cd (``common/common.cpp``, ``common/log.h``). Both parsers read
``_`` as ``-`` in words that begin with ``--``, know no ``--flag=value`` and no prefixes, and take
the next word as the value, whatever it looks like: hence the fixed forms. To review another
version, run ``tests/engines/test_options.py`` against it: it names every flag that is new.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cook.formats.quant_types import Flavour

UNSAFE_FLAG = "--allow-unsafe-args"
"""The option of cook's own command line that lets refused flags through."""
_TRUST = f"{UNSAFE_FLAG} on the command line lets it through, for a recipe that you trust"
OVERRIDE_KV = ("--override-kv", "-okv")
THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


def other_machines(servers: Iterable[str]) -> list[str]:
    """Those of the RPC ``servers`` (``host:port``) that are not this machine.

    Such a server gets the weights and every prompt, so a file alone may not name one.
    """
    hosts = ((s, s.rpartition(":")[0].strip("[]")) for s in servers)
    return [server for server, host in hosts if host and host not in THIS_MACHINE]


class FlagEffect(StrEnum):
    """What a harmless flag sets."""

    PLACEMENT = "placement"
    PERFORMANCE = "performance"
    MEMORY = "memory"
    NUMERICS = "numerics"
    PROMPT = "prompt"


class RefusalReason(StrEnum):
    """Why a flag is refused; the value completes "`--flag`: ..."."""

    DOWNLOADS = "it downloads, and writes over files"
    MODEL = "it replaces or changes the model"
    READS = "it reads a file"
    WRITES = "it writes files"
    LISTENS = "it opens the server to others"
    LOGS = "it writes a log, or hides what cook reads in it"
    CODE = "it loads or runs code"
    MEASURES = "it changes what is measured"
    ENDS = "the tool does something else and ends"
    OURS = "it is set by cook itself"


@dataclass(frozen=True)
class FlagValue:
    """The form of a flag's value; ``says`` describes it to people."""

    says: str
    pattern: str

    def fits(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


_SETTING = r"[a-z0-9-]{1,40}=\d{1,9}(\.\d{1,6})?"
_FORMS = {
    "count": FlagValue("a whole number", r"\d{1,9}"),
    "threads": FlagValue("a whole number", r"\d{1,3}"),
    "integer": FlagValue("a whole number", r"-?\d{1,9}"),
    "real": FlagValue("a number", r"-?\d{1,9}(\.\d{1,9})?(e-?\d{1,2})?"),
    "mask": FlagValue("a mask in hexadecimal", r"(0x)?[0-9a-fA-F]{1,256}"),
    "range": FlagValue("first-last", r"\d{1,4}-\d{1,4}"),
    "shares": FlagValue(
        "numbers with commas", r"\d{1,6}(\.\d{1,6})?([,/]\d{1,6}(\.\d{1,6})?){0,63}"
    ),
    "pairs": FlagValue(
        "pairs of whole numbers with commas", r"\d{1,6},-?\d{1,6}(,\d{1,6},-?\d{1,6}){0,255}"
    ),
    "type,layers": FlagValue("TYPE,LAYERS", r"[A-Za-z0-9_]{1,12},\d{1,4}"),
    "settings": FlagValue("name=number with commas", rf"{_SETTING}(,{_SETTING}){{0,15}}"),
    "count,threshold": FlagValue("COUNT,THRESHOLD", r"-?\d{1,4},\d{1,4}(\.\d{1,6})?"),
}
"""Forms of values by their name in options.tsv; any other form there lists its words."""


@dataclass(frozen=True)
class Option:
    """One option of an engine's tools in all its spellings.

    ``effect`` is what a harmless one sets, or why the option is refused; ``why`` is what it does,
    or that reason in more words. ``value`` is None for a switch. ``unlisted``: a build without a
    GPU takes it and leaves it out of its help. ``replay``: what the worker does about a harmless
    one, in the words of :mod:`cook.engines.worker.loading`.
    """

    spellings: tuple[str, ...]
    effect: FlagEffect | RefusalReason
    why: str
    value: FlagValue | None = None
    unlisted: bool = False
    replay: str = ""

    @property
    def name(self) -> str:
        """The spelling for people: the longest."""
        return max(self.spellings, key=len)

    @property
    def harmless(self) -> bool:
        return isinstance(self.effect, FlagEffect)


def _tables() -> Mapping[Flavour, Mapping[str, Option]]:
    engines = {
        "llama": (Flavour.LLAMA_CPP,),
        "ik": (Flavour.IK_LLAMA_CPP,),
        "both": tuple(Flavour),
    }
    tables: dict[Flavour, dict[str, Option]] = {flavour: {} for flavour in Flavour}
    _, *rows = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()
    for row in rows:
        engine, name, flags, form, listed, replay, what = row.split("\t")
        kinds = FlagEffect if name.upper() in FlagEffect.__members__ else RefusalReason
        effect = kinds[name.upper()]
        words = form.split("|")
        value = _FORMS.get(form) or FlagValue(" or ".join(words), "|".join(map(re.escape, words)))
        option = Option(
            spellings=tuple(flags.split()),
            effect=effect,
            why=str(effect) if what == "-" else what,
            value=None if form == "-" else value,
            unlisted=listed == "unlisted",
            replay=replay,
        )
        for flavour in engines[engine]:
            tables[flavour] |= dict.fromkeys(option.spellings, option)
    return tables


OPTIONS = _tables()
"""Flavour -> spelling -> the option: all that was reviewed, in the order of options.tsv."""
REACHES_BOTH = OPTIONS[Flavour.LLAMA_CPP][OVERRIDE_KV[0]].why


@dataclass(frozen=True)
class ParsedFlag:
    """A harmless flag as it was written; ``value`` is None for a switch."""

    option: Option
    flag: str
    value: str | None


@dataclass(frozen=True)
class Refusal:
    """Why the word at ``index`` of a list of raw flags may not pass.

    ``ours``: cook or a key of the recipe sets it, and nothing lets it through. ``missing``: it is
    harmless, but the engine at hand does not have it.
    """

    index: int
    message: str
    hint: str | None = None
    ours: bool = False
    missing: bool = False


@dataclass(frozen=True)
class Reading:
    """Raw flags, read: the harmless ones, and those that may not pass with the reason."""

    flags: tuple[ParsedFlag, ...]
    refusals: tuple[Refusal, ...]


def read_flags(
    words: Sequence[str],
    flavours: Sequence[Flavour] = tuple(Flavour),
    offered: Collection[str] | None = None,
    engine: str = "the engine",
) -> Reading:
    """Read raw flags against the table of ``flavours``; of several, one suffices.

    ``offered`` are the flags in the help of the tool that gets them, None where it is not known
    yet; ``engine`` names that tool in messages.
    """
    parsed: list[ParsedFlag] = []
    refusals: list[Refusal] = []
    at = 0
    while at < len(words):
        index, flag = at, normal(words[at])
        at += 1
        options = [o for o in _options(flag, flavours) if o.harmless]
        if not options:
            refusals.append(_refused(index, words[index], flavours))
            while at < len(words) and not words[at].startswith("-"):
                at += 1  # the refused flag's own values
            continue
        option, value = options[0], None
        if option.value is not None:
            forms = list(dict.fromkeys(o.value for o in options if o.value is not None))
            value = words[at] if at < len(words) else None
            fits = value is not None and any(form.fits(value) for form in forms)
            at += value is not None and (fits or not value.startswith("-"))
            if not fits:
                takes = f"`{flag}` takes {', or '.join(form.says for form in forms)}"
                found = "and nothing follows it" if value is None else f"not `{value}`"
                refusals.append(Refusal(index, f"{takes}, {found}"))
                continue
        if any(earlier.option.spellings == option.spellings for earlier in parsed):
            refusals.append(Refusal(index, f"`{flag}` is said twice", "keep one"))
        elif offered is not None and flag not in offered and not option.unlisted:
            hint = "use another engine (--engine), or leave it out"
            refusals.append(Refusal(index, f"{engine} has no {flag}", hint, missing=True))
        else:
            parsed.append(ParsedFlag(option, flag, value))
    return Reading(tuple(parsed), tuple(refusals))


def inherited(target: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """Raw flags of a draft with ``own`` in a server of ``target``.

    Both servers start a draft from the target's parameters; only where tensors go is its own.
    """
    mine = {flag.option.spellings for flag in read_flags(own).flags}
    words: list[str] = []
    for found in read_flags(target).flags:
        if found.option.name != "--n-cpu-ffn" and found.option.spellings not in mine:
            words += [found.flag] if found.value is None else [found.flag, found.value]
    return (*words, *own)


def normal(word: str) -> str:
    """``word`` as both engines' parsers see it: ``--model_url`` is ``--model-url``."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _options(flag: str, flavours: Sequence[Flavour]) -> list[Option]:
    return [OPTIONS[flavour][flag] for flavour in flavours if flag in OPTIONS[flavour]]


def _refused(index: int, word: str, flavours: Sequence[Flavour]) -> Refusal:
    flag = normal(word)
    base, equals, _ = flag.partition("=")
    if base == UNSAFE_FLAG:
        message = f"`{word}` is your own word, for cook's command line: no file can say it"
        return Refusal(index, message, ours=True)
    known = _options(base, flavours)
    for option in known:
        if option.effect is RefusalReason.OURS:
            return Refusal(index, f"`{word}` is set by {option.why}, not in `extra`", ours=True)
        if not option.harmless:
            return Refusal(index, f"`{word}` is refused in `extra`: {option.why}", _TRUST)
    hint = _TRUST
    if equals and known:
        why = "it is no flag"
        hint = f"the engines read no `=`: write `{base}` and its value as two items"
    elif not flag.startswith("-"):
        why = "it is no flag, and no flag before it takes it"
    else:
        why = "it is not among the options that cook has reviewed"
        tables = [OPTIONS[flavour].items() for flavour in flavours]
        begun = {o.spellings: o for t in tables for w, o in t if w.startswith(base)}
        if len(begun) == 1 and len(base) > 3:
            (close,) = begun.values()
            why += f" (`{close.name}`? {close.why})"
    return Refusal(index, f"`{word}` is refused in `extra`: {why}", hint)
