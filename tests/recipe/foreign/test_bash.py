"""The bash reader against bash itself, on scripts that can do nothing but print."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import RecipeError
from cook.recipe.foreign.bash import Shell
from cook.recipe.foreign.text import ForeignText, Spanned

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="SKIPPED LOUDLY: no bash on this machine")

NAMES = st.sampled_from("xyz")
BARE = st.text(st.sampled_from("ab1.,:=+-_/%@^#!]{}é"), min_size=1, max_size=4).filter(
    lambda text: text[0] != "#"
)
ESCAPED = st.sampled_from(list("ab \t$\"'\\`#;|&<>()*?[{}~!=é\n")).map("\\".__add__)
SINGLE = st.text(st.sampled_from('ab $"\\`#;|&<>()\n=é'), max_size=6).map("'{}'".format)
# A lone `$` is itself; one before a name, a quote or a bracket is not. (Beside an expansion in
# one word it also keeps bash from splitting that at blanks, which cook does not follow.)
LONE = st.sampled_from(["$.", "$=", "$,", "$%", "$/"])
VARIABLE = NAMES.flatmap(lambda name: st.sampled_from([f"${name}.", f"${name}/", f"${{{name}}}"]))
IN_DOUBLE = st.one_of(
    st.text(st.sampled_from("ab '#;|&<>()*[]{}~.=\n\té"), min_size=1, max_size=4),
    st.sampled_from(["\\$", '\\"', "\\\\", "\\`", "\\a", "\\.", "\\\n", "\\ ", "\\n"]),
    VARIABLE,
    LONE,
)


def double(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Quoted pieces, at their end perhaps a `$` (a pattern's) that is itself."""
    return st.tuples(st.lists(inner, max_size=5).map("".join), st.sampled_from(["", "", "$"])).map(
        lambda made: f'"{made[0]}{made[1]}"'
    )


def word_of(piece: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(piece, min_size=1, max_size=4).map("".join)


PLAIN = st.one_of(BARE, ESCAPED, SINGLE, double(IN_DOUBLE), VARIABLE)
# What an escaped line end or blanks stand between is one word, or two.
GAP = st.sampled_from([" ", " ", "  ", "\t", " \\\n", "\\\n ", " \\\n\t"])
WORDS = st.lists(st.tuples(GAP, word_of(PLAIN)).map("".join), max_size=3).map("".join)
SUBSTITUTION = st.one_of(
    WORDS.map("$(echo a{})".format),
    st.tuples(WORDS, st.sampled_from(["{}", "\n  {}\n", " {} ", "{} # c\n"])).map(
        lambda made: "$(" + made[1].format(f"echo{made[0]} ") + ")"
    ),
)
WORD = st.one_of(
    word_of(st.one_of(PLAIN, SUBSTITUTION, double(st.one_of(IN_DOUBLE, SUBSTITUTION)))),
    word_of(st.one_of(BARE, ESCAPED, SINGLE, LONE)),
)
ASSIGNED = st.tuples(NAMES, st.sampled_from(["=", "=", "+="]), st.just("") | WORD).map("".join)
PRINTED = st.lists(st.tuples(GAP, WORD).map("".join), min_size=1, max_size=3).map(
    lambda words: r"printf '%s\0'" + "".join(words)
)
LINES = st.lists(
    st.text(st.sampled_from("ab '\"#=.$\\é\t"), max_size=6).filter(lambda line: line != "E"),
    max_size=3,
).map(lambda lines: "".join(f"{line}\n" for line in lines))
HERE = st.tuples(NAMES, st.sampled_from(["'E'", '"E"', "\\E"]), LINES).map(
    lambda made: f"read -r -d '' {made[0]} <<{made[1]}\n{made[2]}E"
)
TABBED = st.tuples(NAMES, LINES).map(lambda made: f"read -r -d '' {made[0]} <<-'E'\n{made[1]}\tE")
STATEMENT = st.one_of(
    ASSIGNED,
    ASSIGNED,
    PRINTED,
    PRINTED,
    HERE,
    TABBED,
    st.tuples(NAMES, WORD).map(lambda made: f"read -r -d '' {made[0]} <<<{made[1]}"),
    st.just("# it's a `comment`, \"no more $("),
    st.just(""),
)
SCRIPTS = st.lists(
    st.tuples(st.sampled_from(["", "", "\n", "\t", "# c'\n"]), STATEMENT), max_size=6
).map(lambda parts: "x= y= z=\n" + "".join(f"{before}{made}\n" for before, made in parts))
END = '\nprintf \'%s\\0\' "$x" "$y" "$z"\n'


def bash_prints(script: str, path: str = "/nonexistent") -> list[str]:
    """What the script prints, word for word: bash without files to match and programs to run."""
    argv = [str(BASH), "--norc", "--noprofile", "-f", "-s"]
    env = {"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "~"}
    done = subprocess.run(argv, input=script.encode(), capture_output=True, timeout=10, env=env)
    return done.stdout.decode().split("\0")[:-1]


def read_prints(script: str) -> list[str | None]:
    """What cook says that it prints; None for a word that it does not know."""
    shell = Shell()
    out: list[str | None] = []
    shell.run(ForeignText("x.sh", script))
    for call in shell.calls:
        if call.words[0].known == "printf":
            out += [None if w.unknown else w.text for w in call.words[2:]] or [""]
    return out


@needs_bash
@settings(max_examples=300, deadline=None)
@given(SCRIPTS)
def test_words_are_those_of_bash(script: str) -> None:
    try:
        read = read_prints(script + END)
    except RecipeError:
        checked = subprocess.run([str(BASH), "-n"], input=f"{script}{END}".encode())
        assert checked.returncode != 0, "it is no bash at all"
        return
    assert None in read or read == bash_prints(script + END)


SAMPLES = sorted((Path(__file__).parents[2] / "data").glob("make-quant-*.sh"))
PIECES = [*"\n\t $',=é{}*&;|!\\", "\n\n", "# a", "\\\n", "\\#", "\\$", '\\"', "$."]
PIECES += [",\n", "\n#", "\n #", " # b", "a=q8_0", "$x"]
TOOLS = [path for tool in ("grep", "sed") if (path := shutil.which(tool))]


@needs_bash
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_sample_with_another_block_is_what_bash_makes_of_it(
    sample: Path, data: st.DataObject
) -> None:
    """The scripts of the field, with pieces put into the list of rules that they join."""
    head, opening, rest = sample.read_text().partition('custom="')
    block, closing, pipeline = rest.partition('"\n\n')
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(block)))
        drop = data.draw(st.sampled_from([0, 0, 1, 3]))
        piece = data.draw(st.sampled_from(PIECES))
        block = block[:at] + piece + block[at + drop :]
    script = head + opening + block + closing + pipeline.partition("./ik_llama.cpp")[0]
    shell = Shell()
    try:
        shell.run(ForeignText("x.sh", script))
    except RecipeError:
        return
    (value,) = shell.variables.get("custom") or [Spanned(unknown="it is not set")]
    if not value.unknown:
        with tempfile.TemporaryDirectory() as folder:
            for tool in TOOLS:
                Path(folder, Path(tool).name).symlink_to(tool)
            printed = bash_prints(f"{script}\nprintf '%s\\0' \"$custom\"\n", path=folder)
        assert printed == [value.text]
