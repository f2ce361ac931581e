"""The bash reader against bash itself: what scripts print, and what a variable holds at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError, RecipeError
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


def held(script: str) -> Spanned:
    shell = Shell()
    shell.run(ForeignText("x.sh", script))
    (value,) = shell.variables["x"] or []
    return value


BLOCK = 'custom="\n# a\nblk\\..*\\.attn_v=q8_0\n\n  # b\nffn_(up|down)\\.weight$=iq4_k\n"\n'


@needs_bash
@pytest.mark.parametrize(
    "script",
    [
        "x=a\\\nb; y=2 && z=3",
        "x=2; false || true &&\n\n y=3",
        "(cd /; (y=2); y=3); x=1",
        "y='x'; x=a${z%\"}\"}; x=b",
        "y=\"${z:-'}'}${z:-{}\"; x=b",
        "y=`echo \\`echo a\\``; x=b",
        "y=$(case a in a) echo b;; esac); x=c",
        "x='a{b,c}'; x=$x{1,2}",
        'x=" "; x=$(echo "a"${x}"b" a${x}b)',
        "x=$(cat <<'EOF' | grep -v '^#'\n# a\nb\nEOF\n)\ny=1",
        "x=$(cat <<'EOF' |\n# a\nb\nEOF\n\ngrep -v '^#')\ny=1",
        "x=$(cat <<-EOF\n\ta\\.b\n\tEOF\n)",
        "x=$(tr -d ' ' <<< 'a b c')",
        "export y='2 3'; declare -r x=1",
        BLOCK + "x=$(echo \"$custom\" | grep -v '^#' | \\\n sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'\n)",
        BLOCK + "x=$(echo \"$custom\" |\n  grep -v '^#' |\n  tr '\\n' ',' | sed 's/,,*/,/g')",
        'y=(a b); y+=c; z=d; z+=(e "f g"); x="$y${y[1]}${z[*]}${!z[*]}"',
        "y=m.f16.gguf; x=${y%.*}${y%%.*}${y#*.}${y##*.}${y/f16/q8}${y//./_}${y^^}${y^}",
        "x=${y:-a b}${z:=c}$z${z:+d}${y-e}",
        'y=1; x="${y:+a "b"}${w:-$y-c}"',
        "f() { x=$1${2:-b}$#; x=$1${2:-b}; }; f a",
        "function f { for y in \"$@\"; do x+=$y/; done; }; f 'a b' c",
        'y=1; x=$(cat <<E\na $y \\$b "c"\nE\n)',
        "for x in a b; do y=$x; done; for y in 1 2; do x+=$y; done",
        "f() { shift; x=$1; }; f a b",
        "f() { echo \"m-$1.gguf\"; }; x=$(f 'a b')c",
        "{ y=1; { x=$y; }; }",
        "x=$(echo a{b,c}.d); y=({1,2} '{3,4}'); for z in Q{4,5}_K {,}; do x+=-$z${y[*]}; done",
        'y=(a b); x=; for z in "${!y[@]}"; do x+=$z${y[$z]}${y[z]}; done',
        'f() { for y in "$@" "$@"; do x+=$y.; done; }; x=; f; f "" a',
        "exec 2> >(cat); x=a",
        "case a in (b) y=1;; a|c) y=2;; esac; x=1",
        "y=1; y=2 x=3 true; x=$y; y=4 z=$y; x+=$z",
        "f() { x=$y; }; y=1 f; x+=${y:-none}",
        'y=(a.b.c d.e); x="${y[*]%.*}"',
        "y=a/b; x=\"${y//\\//_}${z:-'}'}${w:-a\\}b}\"",
        "y=a/b/c; x=${y////_}${y///_}",
        "for y in a # b\ndo x=$y; done",
        "x=$((echo a); echo b); x=$( (echo a) )",
        "x=$(seq 2 4); x=$(echo $x)",
        "while false; do y=1; done; x=1",
        "if [[ ab =~ ^(a|b)+$ ]]; then y=1; fi; x=1",
    ],
)
def test_variables_hold_what_bash_puts_there(script: str) -> None:
    value = held(script)
    assert not value.unknown
    assert [value.text] == bash_prints(f"{script}\nprintf '%s\\0' \"$x\"\n", os.environ["PATH"])


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("f() { grep -v a; }; x=$(echo b | f)", "does not know what `f"),
        ("if a; then { y=1; }; x=2; fi", "inside `if`"),
        ("if a; then f() { echo 1; }; else f() { echo 2; }; fi; x=$(f)", "does not know what `f"),
        ("f() { [ -n a ] && echo b; }; x=$(f)", "only one pipeline"),
        ("x=$(curl example.org)", "does not know what `curl"),
        ("x=`date`", "backquotes"),
        ("x=$( (echo a); echo b)", "only one pipeline"),
        ("x=1; (x=2)", "inside `(`"),
        ("true || x=1", "inside `||`"),
        ('[ -n "$1" ] &&\n x=1', "inside `&&`"),
        ("if a; then b; fi && x=1", "inside `&&`"),
        ("x=$(echo a{b,{c,d}})", "braces"),
        ("x=$(echo {1..3})", "braces"),
        ("x=$((1 + 2))", "arithmetic"),
        ("for z in *; do y+=(a b); done; x=${y[1]}", "inside `for`"),
        ("x[1]=a", "single elements of arrays"),
        ("declare -A x=([a]=b)", "arrays with keys"),
        ("y=(a $1); x=${y[1]}", "only when it runs"),
        ("y=a.b; x=${y%[.]*}", "with this pattern is not computed"),
        ("x=$(cat <(a))", "process substitution"),
        ("x=$y", "does not set $y"),
        ("if true; then x=1; fi", "inside `if`"),
        ("for x in *.gguf; do :; done", "runs over the files `*.gguf`"),
        ("for x; do :; done", "the script's own arguments"),
        ("for ((x=0; x<2; x++)); do :; done", "arithmetic is not computed"),
        ("while read -r x; do :; done < list", "from a pipe or a file"),
        ("x=0; ((x++))", "arithmetic"),
        ("x=0; let x++", "arithmetic"),
        ("x=0; until a; do y=$x; x=1; done; x=$y", "it changes in the loop"),
        ("for y in *; do x+=a; done", "it changes in the loop"),
        ("x=1; getopts a x", "changes it"),
        ("x=1; printf -v x a", "changes it"),
        ("select x in a b; do :; done", "asks for it"),
        ("if a; then y=1; fi; x=${y:+b}", "inside `if`"),
        ("x=$(cat file.txt)", "does not know"),
        ("x=$(cat < file.txt)", "what the file holds"),
        ("x=$(cat <<-E\n\t$HOME\n\tE\n)", "a here-document of <<- that expands"),
    ],
)
def test_what_only_running_would_tell_is_unknown(script: str, why: str) -> None:
    value = held(script)
    assert why in value.unknown


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a\n x='b", "2:4: `'` without its other"),
        ('x="b', '1:3: `"` without its other'),
        ("x=$(a; (b", "1:3: `$(` without `)`"),
        ("x=a(b)", "1:4: bash takes no `(` here: quote it"),
        ("for x in a; b", "1:1: `for` without `do`"),
        ("for x in a; do b", "1:1: this has no `done`"),
        ("x=(a", "1:3: `(` without `)`"),
        ("x=${a", "1:3: `${` without `}`"),
        ("x=`a", "1:3: a backquote without its other"),
        ("x=`llama-quantize a`", "1:3: commands between backquotes are not read: write $(...)"),
        ("x=" + "${a:-" * 40, "1:165: nested deeper than 32"),
        ("echo >\n", "1:6: `>` without a word after it"),
        ("cat <<E\na\n", "1:8: the here-document does not end with E"),
        ("x=" + "$(" * 40 + ")" * 40, "1:37: nested deeper than 32"),
    ],
)
def test_what_is_no_bash_is_reported_at_its_place(script: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Shell().run(ForeignText("x.sh", script))
    (problem,) = caught.value.problems
    assert f"{problem.line}:{problem.column}: {problem.message}" == expected


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    held(f"x=$(touch {mark}); touch {mark}; `touch {mark}`; echo a | touch {mark}")
    assert not mark.exists()


def test_growth_is_bounded() -> None:
    script = "x=" + "a" * 1000 + "\n" + "x=$x$x\n" * 40
    with pytest.raises(InputError, match="1 MiB"):
        held(script)


def test_places_survive_the_joining() -> None:
    script = BLOCK + "x=$(echo \"$custom\" | grep -v '^#' | sed -Ez 's:\\n+:,:g;s:,$::;s:^,::')"
    value = held(script)
    assert not value.unknown
    source = ForeignText("x.sh", script)
    at = source.at(value.origin[value.text.index("ffn_")])
    assert (at.line, at.column) == (6, 1)
