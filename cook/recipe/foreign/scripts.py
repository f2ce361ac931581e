"""The quantizer's commands in a script or a model card, under each of its names.

A command that a script holds but that is not computed is an :class:`UnreadCommand`, never nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import FTYPES, ftype_by_name
from cook.recipe.foreign.bash import Unknown, parse_script
from cook.recipe.foreign.shell import Call, Shell, Value
from cook.recipe.foreign.text import ForeignText, Spanned


@dataclass(frozen=True)
class QuantizeCall:
    """``arguments`` are the words behind the program."""

    arguments: tuple[Value, ...]
    offset: int


@dataclass(frozen=True)
class UnreadCommand:
    """A quantizer's command that is not computed, why, and what to write instead."""

    message: str
    hint: str
    offset: int


# Options without a value; every other one has one.
_BARE = re.compile(
    "--(?:allow-requantize|leave-output-tensor|pure|keep-split|dry-run|partial-requant|hide-imatrix"
    "|ignore-imatrix-rules|repack|symmetric-q40|slow-iq2ks)"
)
_TELLING = re.compile(
    "--(?:imatrix|custom-q|tensor-type(?:-file)?|.*-tensor-type|.*embedding-type)"
)
_NAMES = re.compile(r"(?:llama-)?quantize(?:\.exe)?")
_LIKE_IT = re.compile(r"[\w-]*quantize[\w-]*(?:\.exe)?", re.IGNORECASE)
_NAMED_SO = re.compile(r"[\"']?\$\{?\w*quant", re.IGNORECASE)
_CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity"}
_SHELLS = {"bash", "sh", "zsh", "ssh"}
# Programs that only name the quantizer: they build, copy, look for or talk about it.
_NAMING = re.compile(
    r"echo|printf|ls|\[\[?|test|cmake|make|ninja|cp|mv|ln|rm|chmod|chown|which|type|hash|file|strip"
    r"|git|cat|head|tail|p?grep|p?kill|killall|stat|du|install|mkdir|cd|pushd|wget|curl|tar|unzip"
    r"|zip|apt|apt-get|brew|pip|python3?|tee|rsync|scp|ldd|readlink|realpath|ollama"
)
_REPEATING = {"xargs", "parallel", "find"}
_TEXT = re.compile(
    r"(?:llama-quantize(?:\.exe)?|/quantize)[\"']?[ \t][^\n]{0,400}?(?:\.gguf|\$|--|\bI?Q\d_)"
)
_PLAIN = re.compile(r"[\w./=:,+@%~\s-]+")
_WINDOWS = re.compile(
    r"(?:^|[\s\"=])[A-Za-z]:\\\w[\w .\\-]*(?:\\|\.gguf)|\.\\\S*quantize|\\\S*quantize\.exe|\s\^$"
)
_OTHER_LANGUAGES = {
    ".bat": "a Windows batch file",
    ".cmd": "a Windows batch file",
    ".ps1": "a PowerShell script",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".mk": "a makefile",
}


def read_script(source: ForeignText) -> tuple[Shell, list[QuantizeCall | UnreadCommand]]:
    """The shell at the end of the script (or of a card's blocks), and the quantizer's commands."""
    _check_language(source)
    shell, found = Shell(), list[QuantizeCall | UnreadCommand]()
    for start, part in _blocks(source) if is_card(source) else [(0, source)]:
        try:
            script = parse_script(part, start)
        except RecipeError:
            if start == 0 or "quantize" in part.text[start:]:
                raise
            continue  # another command of a card, such as `-m <your model>`
        for call in shell.calls(script):
            found += _commands(source, call)
    reached, variables = {one.offset for one in found}, dict(shell.variables)
    for function in tuple(shell.uncalled.values()):
        message = f"this command is in `{function.name}`, which the script does not call as such"
        for call in shell.calls(function.body, "function"):
            for one in _commands(source, call):
                if one.offset not in reached:
                    reached.add(one.offset)
                    found.append(
                        UnreadCommand(message, "write out the commands that it runs", one.offset)
                    )
    shell.variables = variables
    return shell, found or list(_net(source))


def is_card(source: ForeignText) -> bool:
    """Whether it is Markdown."""
    fences = re.search(r"^[ \t>]*(?:```|~~~)", source.text, re.MULTILINE)
    named = Path(source.file).suffix.lower()
    return named in (".md", ".markdown") or (named not in (".sh", ".bash") and bool(fences))


def base_type_of(value: Value) -> str | None:
    """The base type that the word names, by its name in any case or by the engine's number."""
    if not isinstance(value, Spanned) or value.text.upper() == "COPY":
        return None
    if re.fullmatch(r"\d{1,3}", value.text):
        return _NUMBERS.get(int(value.text))
    try:
        return ftype_by_name(value.text).name
    except InputError:
        return None


_ALIASES = ("COPY", "Q3_K", "Q4_K", "Q5_K")
# Where two share a number, llama.cpp's comes first.
_NUMBERS = {f.file_type: f.name for f in reversed([*FTYPES.values()]) if f.name not in _ALIASES}


def _check_language(source: ForeignText) -> None:
    """RecipeError where it is no bash."""
    path = Path(source.file)
    language = _OTHER_LANGUAGES.get(path.suffix.lower())
    if path.name in ("Makefile", "makefile", "GNUmakefile"):
        language = "a makefile"
    if re.match(r"#!.*\bpython", source.text):
        language = "a Python program"
    hint = "write its llama-quantize commands into a bash script, with / in the paths"
    start = end = 0
    for line in source.text.split("\n"):
        start, end = end, end + len(line) + 1
        if "quantize" not in line or re.match(r"\s*(?:#|rem\b|::)", line, re.IGNORECASE):
            continue
        if language is not None:
            at = source.at(start)
            raise RecipeError([at.problem(f"this is {language}: cook reads bash", hint=hint)])
        if found := _WINDOWS.search(line):
            at = source.at(start + found.start() + len(found[0]) - len(found[0].lstrip(' "=')))
            message = "this is a command of Windows: bash takes its `\\` for something else"
            raise RecipeError([at.problem(message, hint=hint)])
    if language is not None:
        raise InputError(f"{source.file} is {language}: cook reads bash", hint=hint)


def _blocks(source: ForeignText) -> Iterator[tuple[int, ForeignText]]:
    """The card's shell blocks: where each begins, and a text that ends with it: places stay."""
    fence = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*\{?\.?([\w-]*)")
    lines = re.findall(r"[^\n]*\n|[^\n]+", source.text)
    at = place = blocks = 0
    while at < len(lines):
        opening = fence.match(lines[at])
        place += len(lines[at])
        at += 1
        if opening is None:
            continue
        first = at
        while at < len(lines) and not lines[at].strip(" \t>\n").startswith(opening[1]):
            at += 1
        body, language = lines[first:at], opening[2].lower()
        text = "".join(body)
        if language in _SHELL_BLOCKS or (not language and _COMMAND.search(text)):
            blocks += 1
            if blocks > MAX_BLOCKS:
                raise InputError(f"{source.file} has more than {MAX_BLOCKS} shell blocks")
            typed = source.text[:place] + "".join(_typed(body))
            yield place, ForeignText(source.file, typed)
        place += len(text)


MAX_BLOCKS = 200
_SHELL_BLOCKS = {"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"}
_COMMAND = re.compile(r"quantize\S*\s|^custom=", re.MULTILINE)


def _blank(line: str) -> str:
    return " " * len(line.rstrip("\n")) + line[len(line.rstrip("\n")) :]


def _typed(lines: Sequence[str]) -> Iterator[str]:
    """What was typed, of lines with ``$`` prompts: without them and without what was printed."""
    prompted = any(line.lstrip().startswith("$ ") for line in lines)
    goes_on = False
    for line in lines:
        prompt = line.lstrip().startswith("$ ")
        shown = not prompted or prompt or goes_on
        yield (line.replace("$ ", "  ", 1) if prompt else line) if shown else _blank(line)
        goes_on = shown and line.rstrip("\n").endswith("\\")


def _text_of(word: Value) -> str:
    return word.text if isinstance(word, Spanned) else word.tail


def _commands(source: ForeignText, call: Call) -> list[QuantizeCall | UnreadCommand]:
    """The call, if it is the quantizer's, as what it is."""
    words = call.words
    start = _behind_program(source, call)
    if start is None:
        return _commands_in_text(source, call)
    before = [_text_of(word) for word in words[: start - 1]]
    arguments = words[start:]
    asks = {_text_of(word) for word in arguments} & {"--help", "-h", "--version"}
    if (
        not arguments
        or asks
        or any(map(_NAMING.fullmatch, before))
        or before[:2] in (["command", "-v"],)
    ):
        return []
    if repeating := _REPEATING & set(before):
        message = f"what `{repeating.pop()}` gives to llama-quantize is known only when it runs"
        return [UnreadCommand(message, "write one command for each file and type", call.offset)]
    if "--entrypoint" in before[-1:] or _text_of(words[start - 1]).startswith("--entrypoint="):
        message = "which words of `--entrypoint` are llama-quantize's is not computed"
        hint = "write the command as it runs inside: llama-quantize [options] IN OUT TYPE"
        return [UnreadCommand(message, hint, call.offset)]
    return [QuantizeCall(arguments, call.offset)]


def _behind_program(source: ForeignText, call: Call) -> int | None:
    """The index of the first word behind the quantizer's name."""
    contained = any(_text_of(word) in _CONTAINERS for word in call.words)
    for at, word in enumerate(call.words):
        text = _text_of(word)
        name, rest = re.split(r"[/\\]", text)[-1], call.words[at + 1 :]
        if _NAMES.fullmatch(name):
            return at + 1
        if contained and text in ("--quantize", "-q") and (text != "-q" or _fits(rest)):
            return at + 1
        unknown = isinstance(word, Unknown) and not word.tail
        if (unknown or _LIKE_IT.fullmatch(name)) and _fits(rest):
            return at + 1
        if unknown and not at and rest and _NAMED_SO.match(source.text, call.offset):
            return 1
    return None


def _fits(words: Sequence[Value]) -> bool:
    """Whether the words are what a quantizer is given: its options, files and a type."""
    at, telling = 0, False
    while at < len(words) and (text := _text_of(words[at])).startswith("--"):
        telling = telling or bool(_TELLING.fullmatch(text))
        at += 1 if _BARE.fullmatch(text) else 2
    files = words[at : at + 3]
    for place in (1, 2):
        if place < len(files) and base_type_of(files[place]) is not None:
            return all(
                isinstance(w, Unknown) or w.text.endswith((".gguf", ".bin")) for w in files[:place]
            )
    return telling and len(files) >= 2


def _commands_in_text(source: ForeignText, call: Call) -> list[QuantizeCall | UnreadCommand]:
    """Of a command that is given to a shell as a text."""
    program, *rest = call.words
    name = _text_of(program)
    keeps = call.stdin is not None and (name == "tee" or (name == "cat" and call.writes))
    if _NAMING.fullmatch(name) and not keeps:
        return []
    if name == "eval" or (name in _SHELLS and "-c" in map(_text_of, rest)):
        given = [w for w in rest if not _text_of(w).startswith("-c")]
        if given and all(isinstance(w, Spanned) and _PLAIN.fullmatch(w.text) for w in given):
            pieces = [piece for w in given if isinstance(w, Spanned) for piece in w.words()]
            return _commands(source, Call(tuple(pieces), call.offset)) if pieces else []
    texts = [_text_of(w) for w in call.words if " " in _text_of(w)]
    if keeps or name in _SHELLS | _CONTAINERS | _REPEATING:
        piped = call.piped.words if call.piped else ()
        texts += [_text_of(w) for w in (*piped, *([call.stdin] if call.stdin else ()))]
    if not any(map(_TEXT.search, texts)):
        return []
    message = f"a llama-quantize command in a text for `{name or '$...'}` is not computed"
    return [UnreadCommand(message, "write the command itself on a line of its own", call.offset)]


def _net(source: ForeignText) -> Iterator[UnreadCommand]:
    """Lines that plainly hold a quantizer's command, where none was found."""
    offset = 0
    for line in source.text.split("\n"):
        first = [*line.split(maxsplit=1), "#"][0]
        if _TEXT.search(line) and first[0] != "#" and not _NAMING.fullmatch(first):
            message = "how this llama-quantize command is run is not computed"
            yield UnreadCommand(message, "write it on a line of its own", offset)
        offset += len(line) + 1
