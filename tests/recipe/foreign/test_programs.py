"""The filters of scripts against the programs themselves."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from cook.recipe.foreign.programs import output
from cook.recipe.foreign.text import ForeignText

GIVEN = "\n# a\nblk\\..*\\.attn_v=q8_0,\n\n  # b\n\tffn_(up|down)\\.weight$=iq4_k # c\n, ,,\n"


def prints(command: str) -> str | None:
    name, *words = ((ForeignText("", word).whole) for word in [*shlex.split(command), GIVEN])
    found = output(name.text, words[:-1], words[-1], 0)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "command",
    [
        "cat -",
        "echo -n a  'b c'",
        "printf %s a",
        r"printf '%s\n' a",
        "grep -v '^#'",
        r"grep -vE '^\s*(#|$)'",
        "grep --invert-match -e '^[[:space:]]*#'",
        "egrep -v '^ +#|^$'",
        r"sed -Ez 's:\n+:,:g;s:,$::;s:^,::'",
        "sed '/^#/d;/^$/d'",
        "sed -e '/^[[:space:]]*#/d' -e '/^$/d'",
        r"sed ':a;N;$!ba;s/\n/,/g'",
        "sed 's/ *#.*$//'",
        "sed -r 's/,+/,/; s/ //g'",
        r"tr '\n' ','",
        r"tr -d '[:space:]'",
        r"tr -s '\n' ','",
        "paste -sd,",
        "basename a/b.gguf .gguf",
        "basename .gguf .gguf",
        "dirname a/b/c/",
        "seq 2 4",
        "seq 0 5 20",
        "seq 3 1",
    ],
)
def test_it_prints_what_the_program_prints(command: str) -> None:
    argv = shlex.split(command)
    if shutil.which(argv[0]) is None:
        pytest.skip(f"SKIPPED LOUDLY: no {argv[0]} on this machine")
    done = subprocess.run(argv, input=GIVEN, capture_output=True, text=True, timeout=10, check=True)
    # `paste` ends its line; at the end of `$(...)` that is dropped.
    assert str(prints(command)).rstrip("\n") == done.stdout.rstrip("\n")


@pytest.mark.parametrize(
    "command",
    [
        "curl x",
        "cat file",
        r"echo -e 'a\tb'",
        "printf %d 1",
        "grep '^#'",
        "grep -v q8",
        "grep -vE '( *)*#'",
        "grep -v '^+'",
        "sed s/a/b/",
        r"sed 's:\n+:;:g'",
        "sed -i '/^#/d'",
        "sed '/^#/d' file",
        "tr a b",
        "basename a b c",
        "seq -w 1 3",
        "seq 1 0 3",
        "seq 1 999999",
    ],
)
def test_what_is_not_certain_is_not_computed(command: str) -> None:
    assert prints(command) is None
