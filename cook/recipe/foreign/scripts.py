"""The quants of a script or a model card: the quantizer's commands, under each of its names.

A command that a script holds but that is not computed is an error, never nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP
from cook.recipe.foreign.bash import Call, Shell
from cook.recipe.foreign.quantize_options import OPTIONS, QuantizeOptions, base_type_in
from cook.recipe.foreign.quants import ForeignQuant, Notes, read_rules, rule_lines, safe_name
from cook.recipe.foreign.text import ForeignText, Spanned

MAX_BLOCKS = 200

_NAMES = re.compile(r"(?:llama-)?quantize(?:\.exe)?")
_LIKE_IT = re.compile(r"[\w-]*quantize[\w-]*(?:\.exe)?", re.IGNORECASE)
_NAMED_SO = re.compile(r"[\"']?\$\{?\w*quant", re.IGNORECASE)
_CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity"}
_SHELLS = {"bash", "sh", "zsh", "ssh"}
_PRINTING = ("echo", "printf", "cat", "tee")
# Programs that only name the quantizer: they build, copy, look for or talk about it.
_NAMING = re.compile(
    r"echo|printf|ls|\[\[?|test|cmake|make|ninja|cp|mv|ln|rm|chmod|chown|which|type|hash|file|strip"
    r"|git|cat|head|tail|p?grep|p?kill|killall|stat|du|install|mkdir|cd|pushd|wget|curl|tar|unzip"
    r"|zip|apt|apt-get|brew|pip|python3?|tee|rsync|scp|ldd|readlink|realpath|ollama|sed|awk|less"
    r"|more|wc|sort|logger|mail|column|read|mapfile|readarray|tr"
)
_REPEATING = {"xargs", "parallel", "find"}
_TEXT = re.compile(
    r"(?:llama-quantize(?:\.exe)?|/quantize)[\"']?[ \t][^\n]{0,400}?(?:\.gguf|\$|--|\bI?Q\d_)"
)
_PLAIN = re.compile(r"[\w./=:,+@%~\s-]+")
_WINDOWS = re.compile(
    r"(?:^|[\s\"=])([A-Za-z]:\\\w[\w .\\-]*(?:\\|\.gguf)|\.\\\S*quantize|\\\S*quantize\.exe|\s\^$)"
)
_OTHER_LANGUAGES = {
    ".bat": "a Windows batch file",
    ".cmd": "a Windows batch file",
    ".ps1": "a PowerShell script",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".mk": "a makefile",
    "makefile": "a makefile",
    "gnumakefile": "a makefile",
}
_SHELL_BLOCKS = {"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"}
_COMMAND = re.compile(r"quantize\S*\s|^custom=", re.MULTILINE)
_FENCE = re.compile(
    r"^[ \t>]*(?P<fence>`{3,}|~{3,})[ \t]*\{?\.?(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<body>(?:(?![ \t>]*(?P=fence))[^\n]*(?:\n|\Z))*)(?:[ \t>]*(?P=fence)[^\n]*)?",
    re.MULTILINE,
)


def read_script(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The quants of the script (or of a card's blocks), faults in ``notes``; none where it holds
    no rules at all."""
    _check_language(source)
    shell, quants = Shell(), list[ForeignQuant]()
    for start, part in _blocks(source) if is_card(source) else [(0, source)]:
        try:
            shell.run(part, start)
        except RecipeError:
            # In a card, `-m <your model>` of another command is no fault.
            if start == 0 or "quantize" in part.text[start:]:
                raise
    for call in shell.calls:
        if call.within and call.within.offset in shell.called:
            continue
        try:
            words = _arguments(source, call)
            if words is not None and call.within:
                function = f"`{call.within.name}`, which the script does not call as such"
                hint = "write out the commands that it runs"
                raise source.error(call.offset, f"this command is in {function}", hint)
            if words is not None:
                quants.append(QuantizeOptions(source, words, call.offset, notes).quant(name))
        except RecipeError as error:
            notes.problems += [p for p in error.problems if p not in notes.problems]
    if quants or notes.problems:
        return _named_apart(quants)
    return _block(source, shell, name, notes)


def _block(source: ForeignText, shell: Shell, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The rules of the variable that holds some, of a script without a command."""
    one = {name: values[0] for name, values in shell.variables.items() if values and not values[1:]}
    texts = {name: text for name, text in one.items() if "=" in text.known}
    block = texts.get("custom") or (next(iter(texts.values())) if len(texts) == 1 else None)
    for line in re.finditer(r"[ \t]*([^\s#]\S*).*", source.text):
        named = _NAMING.fullmatch(line[1]) and (block or line[1] not in _PRINTING)
        if _TEXT.search(line[0]) and not named:
            message = "how this llama-quantize command is run is not computed"
            notes.error(source.at(line.start(1)), message, "write it on a line of its own")
    if block is None:
        return ()
    items = (item for line in rule_lines(block) for item in line.rstrip(",").split(","))
    rules = read_rules(source, items, IK_LLAMA_CPP, notes)
    return (ForeignQuant(name, rules, source.at(block.start), flavour=IK_LLAMA_CPP),)


def _named_apart(quants: Sequence[ForeignQuant]) -> tuple[ForeignQuant, ...]:
    """Several commands of one script are called after what they write; one that is there twice
    (a retry, two branches) is one."""
    distinct: dict[object, ForeignQuant] = {}
    for q in quants:
        distinct.setdefault((q.output or q.at, q.type, q.imatrix, q.mixture, q.rules), q)
    if len(distinct) < 2:
        return tuple(distinct.values())
    named, used = [], list[str]()
    for q in distinct.values():
        name = safe_name(Path(q.output).stem if q.output else q.type or q.name)
        used.append(name.lower())
        number = used.count(name.lower())
        named.append(replace(q, name=name if number == 1 else f"{name[:60]}-{number}"))
    return tuple(named)


def is_card(source: ForeignText) -> bool:
    """Whether it is Markdown."""
    fences = re.search(r"^[ \t>]*(?:```|~~~)", source.text, re.MULTILINE)
    named = Path(source.file).suffix.lower()
    return named in (".md", ".markdown") or (named not in (".sh", ".bash") and bool(fences))


def _check_language(source: ForeignText) -> None:
    """RecipeError where it is no bash."""
    path = Path(source.file)
    language = _OTHER_LANGUAGES.get(path.suffix.lower() or path.name.lower())
    if re.match(r"#!.*\bpython", source.text):
        language = "a Python program"
    hint = "write its llama-quantize commands into a bash script, with / in the paths"
    lines = re.finditer(r"(?im)^(?![ \t]*(?:#|rem\b|::)).*quantize.*", source.text)
    if language:
        first = next(lines, None)
        message = f"this is {language}: cook reads bash"
        raise source.error(first.start() if first else 0, message, hint)
    for line in lines:
        if found := _WINDOWS.search(line[0]):
            message = "this is a command of Windows: bash takes its `\\` for something else"
            raise source.error(line.start() + found.start(1), message, hint)


def _blocks(source: ForeignText) -> Iterator[tuple[int, ForeignText]]:
    """The card's shell blocks: where each begins, and a text that ends with it: places stay."""
    blocks = 0
    for block in _FENCE.finditer(source.text):
        language, body = block["language"].lower(), block["body"]
        if language in _SHELL_BLOCKS or (not language and _COMMAND.search(body)):
            blocks += 1
            if blocks > MAX_BLOCKS:
                raise InputError(f"{source.file} has more than {MAX_BLOCKS} shell blocks")
            start = block.start("body")
            yield start, ForeignText(source.file, source.text[:start] + _typed(body))


def _typed(block: str) -> str:
    """What was typed, of lines with ``$`` prompts: without them and without what was printed."""
    if not re.search(r"(?m)^[ \t]*\$ ", block):
        return block
    typed = re.compile(r"(?m)^[ \t]*\$ (?:[^\n]*\\\n)*[^\n]*$")
    at, out = 0, ""
    for found in typed.finditer(block):
        out += re.sub(r"[^\n]", " ", block[at : found.start()]) + found[0].replace("$ ", "  ", 1)
        at = found.end()
    return out + re.sub(r"[^\n]", " ", block[at:])


def _arguments(source: ForeignText, call: Call) -> Sequence[Spanned] | None:
    """What the quantizer is given, where the call is its; RecipeError where it is one that is not
    computed."""
    start = _behind_program(source, call)
    if start is None:
        return _in_text(source, call)
    before, arguments = [word.text for word in call.words[: start - 1]], call.words[start:]
    asks = {word.text for word in arguments} & {"--help", "-h", "--version"}
    names = any(map(_NAMING.fullmatch, before)) or before[:2] == ["command", "-v"]
    if not arguments or asks or names:
        return None
    if repeating := _REPEATING & set(before):
        message = f"what `{repeating.pop()}` gives to llama-quantize is known only when it runs"
        raise source.error(call.offset, message, "write one command for each file and type")
    if "--entrypoint" in before[-1:] or call.words[start - 1].text.startswith("--entrypoint="):
        message = "which words of `--entrypoint` are llama-quantize's is not computed"
        hint = "write the command as it runs inside: llama-quantize [options] IN OUT TYPE"
        raise source.error(call.offset, message, hint)
    return arguments


def _behind_program(source: ForeignText, call: Call) -> int | None:
    """The index of the first word behind the quantizer's name."""
    contained = any(word.text in _CONTAINERS for word in call.words)
    for at, word in enumerate(call.words):
        name, rest = re.split(r"[/\\]", word.text)[-1], call.words[at + 1 :]
        entry = contained and (word.text == "--quantize" or (word.text == "-q" and _fits(rest)))
        unknown = word.unknown and not word.text
        if entry or _NAMES.fullmatch(name):
            return at + 1
        if (unknown or _LIKE_IT.fullmatch(name)) and _fits(rest):
            return at + 1
        if unknown and not at and rest and _NAMED_SO.match(source.text, call.offset):
            return 1
    return None


def _fits(words: Sequence[Spanned]) -> bool:
    """Whether the words are what a quantizer is given: its options, files and a type."""
    at, telling = 0, False
    while at < len(words) and (text := words[at].text).startswith("--"):
        option = OPTIONS.get(text)
        own = option is not None and option.value == "yes" and option.effect != "refused"
        telling = telling or own or text.endswith("-type")
        at += 1 if option and option.value == "no" else 2
    files = words[at : at + 3]
    place, _ = base_type_in(files)
    if place:
        return all(file.unknown or file.text.endswith((".gguf", ".bin")) for file in files[:place])
    return telling and len(files) >= 2


def _in_text(source: ForeignText, call: Call) -> Sequence[Spanned] | None:
    """Of a command that is given to another program as a text."""
    program, *rest = call.words
    name = program.text
    keeps = name in _PRINTING and (
        call.into.endswith((".sh", ".bash"))
        or (call.stdin is not None and bool(call.into or name == "tee"))
    )
    if _NAMING.fullmatch(name) and not keeps:
        return None
    if name == "eval" or (name in _SHELLS and any(word.text == "-c" for word in rest)):
        given = [word for word in rest if not word.text.startswith("-c")]
        if given and all(_PLAIN.fullmatch(word.known) for word in given):
            pieces = [piece for word in given for piece in word.words()]
            return _arguments(source, replace(call, words=pieces)) if pieces else None
    texts, feeding = [word.text for word in call.words if " " in word.text], [call]
    while (piped := feeding[-1].piped) is not None:
        texts += [word.text for word in piped.words]
        feeding.append(piped)
    texts += [one.stdin.text for one in feeding if one.stdin]
    if not any(map(_TEXT.search, texts)):
        return None
    message = f"a llama-quantize command in a text for `{name or '$...'}` is not computed"
    raise source.error(call.offset, message, "write the command itself on a line of its own")
