"""Scripts in the idioms of the field: each gives its quants, or an error at the line that it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cook.errors import InputError, RecipeError
from cook.recipe.foreign.importing import import_recipe
from cook.recipe.foreign.quantize_options import base_type_of
from cook.recipe.foreign.scripts import MAX_BLOCKS
from cook.recipe.foreign.text import Spanned

# What each gives is a line a quant, `name TYPE` with `+N` for rules and `~` for the recipe's
# imatrix; or an error as `LINE: text`.
SCRIPTS: dict[str, tuple[str, str]] = {
    # Found in the field; the threads and files that they are cut from are named.
    "qnt-all of llama.cpp (scripts/qnt-all.sh)": (
        'qnt=(q8_0 q6_k q4_k)\nargs=""\nif [ ! -z "$3" ]; then\n    args="$3"\nfi\n'
        'model="$1"\nfor q in ${qnt[@]}; do\n    time ./bin/llama-quantize '
        "../models/${model}/f16.gguf ../models/${model}/${q}.gguf ${q} 2>&1 ${args} | tee l\ndone",
        "q8_0 Q8_0\nq6_k Q6_K\nq4_k Q4_K",
    ),
    "its types replaced by an argument": (
        'qnt=(q8_0 q6_k)\nif [ ! -z "$2" ]; then\n    qnt=($2)\nfi\n'
        "for q in ${qnt[@]}; do\n    ./bin/llama-quantize f16.gguf ${q}.gguf ${q}\ndone",
        "6: the base type: not computed: `for q` runs over it: it is assigned inside `if` (line 3)",
    ),
    "snowyu/embeddings.cpp models/run_conversions.sh: digits": (
        "model=$1\npython convert-to-ggml.py ${model} 1\n"
        "../build/bin/quantize ${model}/f16.gguf ${model}/q4_0.gguf 2\n"
        "../build/bin/quantize ${model}/f16.gguf ${model}/q4_1.gguf 3",
        "q4_0 Q4_0\nq4_1 Q4_1",
    ),
    "llama.cpp issue 621: ./quantize, a digit": (
        "./quantize ./models/7B/ggml-model-f16.bin ./models/7B/ggml-model-q4_0.bin 2",
        "x Q4_0",
    ),
    "ik_llama.cpp issue 659: flags for two tensors": (
        "./llama-quantize --imatrix ../m/imatrix.gguf --allow-requantize --output-tensor-type q8_0 "
        "--token-embedding-type q8_0 ../m/bf16-00001-of-00003.gguf model-q4_k_l.gguf q4_k_m",
        "x Q4_K_M +2 ~",
    ),
    "llama.cpp issue 24379: an alias": (
        "llama.cpp/build/bin/llama-quantize --imatrix i.gguf MiMo.gguf MiMo-Q4_K_M.gguf Q4_K",
        "x Q4_K ~",
    ),
    "llama.cpp issue 9007: two types": (
        "./llama-quantize f16.gguf Q4_K_M Q8_0",
        "1: llama-quantize does not take `Q8_0` as the number of threads",
    ),
    "llama.cpp issue 18565: options behind the type": (
        "./llama-quantize a-bf16.gguf a-UD.gguf F32 --tensor-type output.weight=Q6_K",
        "1: llama-quantize takes no option behind the files: --tensor-type",
    ),
    "ik_llama.cpp pull 262: flags by role": (
        "./build/bin/llama-quantize --imatrix i.dat \\\n  --token-embedding-type q8_0 \\\n"
        '  --attn-q-type q6_K \\\n  --custom-q "output\\.weight=q6_K" a.gguf b.gguf IQ3_K',
        "3: a recipe cannot say --attn-q-type",
    ),
    "shisa-v2: Q8_0 without, the others with the imatrix": (
        'BIN="/data/llama.cpp/build/bin"\nFP16=fp16.gguf\nIM="imatrix.dat"\nN=shisa\n'
        "${BIN}/llama-quantize ${FP16} ${N}-Q8_0.gguf Q8_0\n"
        "${BIN}/llama-quantize --imatrix ${IM} ${FP16} ${N}-IQ4_XS.gguf IQ4_XS",
        "shisa-Q8_0 Q8_0\nshisa-IQ4_XS IQ4_XS ~",
    ),
    "BalajiMittapalli/AI-Tutor code/quantize.sh: a test of the program": (
        'B="/path/to/bin"\nif [ ! -x "$B/quantize" ]; then\n  echo "no quantize at $B/quantize"\n'
        '  exit 1\nfi\n"$B/quantize" "m.bin" "./g-Q4_K_M.gguf" "q4_k_M"',
        "x Q4_K_M",
    ),
    "arguments with defaults": (
        'IN=${1:?"input gguf required"}\nQTYPE=${3:-Q4_K_M}\nDIR=${DIR:-"./llama.cpp"}\n'
        'cmake --build "${DIR}/build" -j --target llama-quantize llama-cli\n'
        'cp build/bin/llama-quantize .\n"$DIR/quantize" "$IN" "${IN%.gguf}-$QTYPE.gguf" "$QTYPE"',
        "x Q4_K_M",
    ),
    "an argument without": (
        "QUANT_TYPE=$1\n${LLAMA}/quantize \\\n  in.gguf \\\n  out.gguf \\\n  ${QUANT_TYPE}",
        "2: the base type: not computed: `$1` is known only when it runs (line 1)",
    ),
    # The program.
    "docker, --quantize": (
        "docker run -v /m:/m ghcr.io/ggml-org/llama.cpp:full --quantize /m/a.gguf /m/b.gguf 15",
        "x Q4_K_M",
    ),
    "docker, the program named": (
        "sudo docker run --rm image /app/llama-quantize a.gguf b.gguf Q6_K",
        "x Q6_K",
    ),
    "docker, an entry point": (
        "docker run --entrypoint /app/llama-quantize image a.gguf b.gguf Q6_K",
        "1: which words of `--entrypoint` are llama-quantize's is not computed",
    ),
    "llama quantize": ("llama quantize --pure a.gguf b.gguf q5_0 8", "x Q5_0"),
    "the program is an argument": ('"$1" --imatrix i.dat a.gguf b.gguf Q4_K_M', "x Q4_K_M ~"),
    "nothing but its name is known": (
        '"$QUANTIZE" "$IN" "$OUT" "$TYPE"',
        "1: the base type: not computed: the script does not set $TYPE",
    ),
    "a program of another name": ("./my-quantize-avx2 a.gguf b.gguf iq4_nl", "x IQ4_NL"),
    # What stands around it.
    "time, nice, taskset, env": (
        "time nice -n 19 taskset -c 0-7 env A=b CUDA_VISIBLE_DEVICES= ./llama-quantize a b Q4_0",
        "x Q4_0",
    ),
    "in a condition and a pipeline": (
        "set -o pipefail\nif ! CUDA_VISIBLE_DEVICES= ./llama-quantize a.gguf b.gguf Q3_K_M |& tee l"
        "; then\n  exit 1\nfi && ./llama-quantize a.gguf c.gguf Q2_K &",
        "b Q3_K_M\nc Q2_K",
    ),
    "an output that is caught": (
        'log=$(./llama-quantize a.gguf b.gguf Q4_K_M 2>&1 | grep size)\necho "$log"',
        "x Q4_K_M",
    ),
    "tee by a process substitution": (
        "exec > >(tee -a log) 2>&1\n./llama-quantize a.gguf b.gguf Q4_K_M",
        "x Q4_K_M",
    ),
    "both branches": (
        "if [ -f i.dat ]; then\n  llama-quantize --imatrix i.dat a.gguf b.gguf Q4_K_M\nelse\n"
        "  llama-quantize a.gguf b.gguf Q4_K_M\nfi",
        "b Q4_K_M ~\nb-2 Q4_K_M",
    ),
    "a retry": (
        "llama-quantize a.gguf b.gguf Q4_K_M || llama-quantize a.gguf b.gguf Q4_K_M",
        "x Q4_K_M",
    ),
    "a command in a variable": (
        'CMD="./llama-quantize --pure a.gguf b.gguf Q4_0"\necho "$CMD"\neval "$CMD"',
        "x Q4_0",
    ),
    "bash -c with quotes": (
        "nohup true\nbash -c './llama-quantize \"a b.gguf\" c.gguf Q4_0 > log'",
        "2: a llama-quantize command in a text for `bash` is not computed",
    ),
    "ssh and a here-document": (
        "ssh box <<'EOF'\ncd llama.cpp\n./llama-quantize a.gguf b.gguf Q4_0\nEOF",
        "1: a llama-quantize command in a text for `ssh` is not computed",
    ),
    "a pipe into a shell": (
        'echo "./llama-quantize a.gguf b.gguf Q4_0" | tee log | bash\n'
        'echo "./llama-quantize a.gguf b.gguf Q4_0" | bash',
        "1: a llama-quantize command in a text for `bash` is not computed\n2: a llama-quantize",
    ),
    "a pipe into another program": (
        'llama-quantize m.gguf a.gguf Q8_0\necho "./llama-quantize a.gguf b.gguf Q4_0" | at now',
        "2: a llama-quantize command in a text for `at` is not computed",
    ),
    "a loop that prints commands": (
        "for q in Q4_0 Q5_0; do\n  echo llama-quantize m.gguf o-$q.gguf $q\ndone | parallel -j2\n"
        'for q in Q4_0; do echo "llama-quantize m.gguf o-$q.gguf $q"; done | qsub',
        "4: a llama-quantize command in a text for `qsub` is not computed",
    ),
    "a here-document for another program": (
        "sbatch <<EOF\n./llama-quantize m.gguf o.gguf Q4_K_M\nEOF",
        "1: a llama-quantize command in a text for `sbatch` is not computed",
    ),
    "a script that prints a script": (
        'echo "./llama-quantize m.gguf o.gguf Q4_K_M" >> job.sh\nllama-quantize m.gguf a.gguf Q8_0',
        "1: a llama-quantize command in a text for `echo` is not computed",
    ),
    "a log of what runs": (
        'echo "llama-quantize m.gguf a.gguf Q8_0" >> log\nllama-quantize m.gguf a.gguf Q8_0',
        "x Q8_0",
    ),
    "a command that is only printed": (
        'echo "./llama-quantize m.gguf o.gguf Q4_K_M"',
        "1: how this llama-quantize command is run is not computed",
    ),
    "find": (
        "find . -name '*f16.gguf' -exec ./llama-quantize {} {}.q4.gguf Q4_0 \\;",
        "1: what `find` gives to llama-quantize is known only when it runs",
    ),
    "xargs": (
        "echo Q4_0 Q5_0 | xargs -n1 -I{} llama-quantize a.gguf a-{}.gguf {}",
        "1: what `xargs` gives to llama-quantize is known only when it runs",
    ),
    # Loops, functions, arrays.
    "a loop over words": (
        "for q in Q4_K_M IQ4_XS\ndo llama-quantize --imatrix i.dat m.gguf m-$q.gguf $q $(nproc)\n"
        "done",
        "m-Q4_K_M Q4_K_M ~\nm-IQ4_XS IQ4_XS ~",
    ),
    "a loop over a text, a name in small letters": (
        'T="Q8_0 Q4_0"\nfor t in $T; do llama-quantize m.gguf "m-${t,,}.gguf" "$t"; done',
        "m-q8_0 Q8_0\nm-q4_0 Q4_0",
    ),
    "a loop over the files": (
        'for f in *-f16.gguf; do\n  llama-quantize "$f" "${f/f16/Q6_K}" Q6_K\ndone',
        "x Q6_K",
    ),
    "a loop by number": (
        'A=(Q4_0 Q5_0)\nfor i in "${!A[@]}"; do\n  llama-quantize m.gguf m-$i.gguf ${A[$i]}\ndone',
        "m-0 Q4_0\nm-1 Q5_0",
    ),
    "a loop by arithmetic": (
        "A=(Q4_0 Q5_0)\nfor ((i=0; i<2; i++)); do\n  llama-quantize m.gguf m.gguf ${A[i]}\ndone",
        "3: the base type: not computed: the index `i` is not computed",
    ),
    "a loop by seq": (
        "A=(Q4_0 Q5_0)\nfor i in $(seq 0 1); do\n  llama-quantize m.gguf m-$i.gguf ${A[$i]}\ndone",
        "m-0 Q4_0\nm-1 Q5_0",
    ),
    "a loop that counts": (
        "A=(Q4_0 Q5_0)\ni=0\nwhile [ $i -lt 2 ]; do\n  llama-quantize m.gguf m.gguf ${A[$i]}\n"
        "  i=$((i+1))\ndone",
        "4: the base type: not computed: the index `$i` is not computed",
    ),
    "a loop that counts in place": (
        "A=(Q4_0 Q5_0)\ni=0\nuntil ((i == 2)); do\n  llama-quantize m.gguf m.gguf ${A[i]}\n"
        "  ((i++))\ndone",
        "4: the base type: not computed: the index `i` is not computed",
    ),
    "a loop that changes its type": (
        "t=Q4_0\nwhile :; do\n  llama-quantize m.gguf m.gguf $t\n  t=Q5_0\ndone",
        "3: the base type: not computed: it changes in the loop (line 2)",
    ),
    "a loop that changes its source": (
        "i=0\nwhile :; do\n  llama-quantize m-$i.gguf o.gguf Q4_0\n  let i++\ndone",
        "x Q4_0",
    ),
    "a loop that adds rules": (
        "for f in *.gguf; do\n  R+=,a=q8_0\n  llama-quantize --custom-q a=q8_0$R $f Q4_0\ndone",
        "1: what --custom-q is given is not known without running the script: it changes in the",
    ),
    "a loop with a type of its own": (
        "while read -r f; do\n  T=Q4_0\n  llama-quantize $f m-$T.gguf $T\ndone < list",
        "x Q4_0",
    ),
    "a loop over an array that is edited": (
        'A=(m-Q4_0.gguf m-Q5_0.gguf)\nfor f in "${A[@]%.gguf}"; do llama-quantize m.gguf $f.gguf '
        "${f#m-}; done",
        "m-Q4_0 Q4_0\nm-Q5_0 Q5_0",
    ),
    "a script that writes a script": (
        "llama-quantize m.gguf a.gguf Q8_0\ncat > run.sh <<EOF\n"
        "llama-quantize m.gguf b.gguf Q4_0\nEOF\nbash run.sh",
        "2: a llama-quantize command in a text for `cat` is not computed",
    ),
    "usage in a here-document": (
        "usage() {\n  cat <<EOF\nUsage: llama-quantize m.gguf b.gguf Q4_0\nEOF\n}\n"
        "llama-quantize m.gguf a.gguf Q8_0 || usage",
        "x Q8_0",
    ),
    "a loop over braces": (
        "for q in Q{4,5}_K_M {1..3}; do llama-quantize m.gguf m-$q.gguf $q; done",
        "1: the base type: not computed: `for q` runs over it: braces that make several words",
    ),
    "a loop over a list in braces": (
        "for q in Q{4,5}_K_M; do llama-quantize m.gguf m-$q.gguf $q; done",
        "m-Q4_K_M Q4_K_M\nm-Q5_K_M Q5_K_M",
    ),
    "a loop over lines": (
        "while read -r q; do\n  ./llama-quantize m.gguf m-$q.gguf $q\ndone < types.txt",
        "2: the base type: not computed: `read` takes it from a pipe or a file (line 1)",
    ),
    "an array with keys": (
        "declare -A T=([small]=Q4_0 [big]=Q8_0)\nfor k in small big; do\n"
        '  llama-quantize m.gguf $k.gguf "${T[$k]}"\ndone',
        "3: the base type: not computed: arrays with keys are not computed (line 1)",
    ),
    "a function": (
        'q() {\n  local type=$1; shift\n  llama-quantize "$@" m.gguf "m-$type.gguf" "$type"\n}\n'
        "q Q4_K_M --imatrix i.dat\nq Q8_0",
        "m-Q4_K_M Q4_K_M ~\nm-Q8_0 Q8_0",
    ),
    "a variable for one call": (
        "q() {\n  llama-quantize m.gguf m-$T.gguf $T\n}\nT=Q4_0 q\nT=Q8_0 q",
        "m-Q4_0 Q4_0\nm-Q8_0 Q8_0",
    ),
    "a variable for one command is not for its words": (
        "T=Q4_0 llama-quantize m.gguf m.gguf $T",
        "1: the base type: not computed: the script does not set $T",
    ),
    "a function that is not called as such": (
        "make_one() {\n  llama-quantize m.gguf m-$1.gguf $1\n}\nexport -f make_one\n"
        "parallel make_one ::: Q4_0 Q5_0",
        "2: this command is in `make_one`, which the script does not call as such",
    ),
    "flags in an array": (
        "F=(--tensor-type attn_v=q8_0)\nF+=(--tensor-type 'ffn_down=q6_K')\n"
        'llama-quantize "${F[@]}" --imatrix "i.dat" m.gguf o.gguf Q4_K_M',
        "x Q4_K_M +2 ~",
    ),
    "flags that a condition sets": (
        'if [ -f i.dat ]; then I="--imatrix i.dat"; fi\nllama-quantize $I m.gguf o.gguf Q4_K_M',
        "2: the options: not computed: it is assigned inside `if` (line 1)",
    ),
    "flags that may be none": (
        "llama-quantize $FLAGS in.gguf Q4_K_M",
        "1: the options or the source: not computed: the script does not set $FLAGS",
    ),
    "a source in quotes": ('llama-quantize "$IN" out.gguf Q4_K_M', "x Q4_K_M"),
    "an argument as the source": ("llama-quantize $1 out.gguf Q4_K_M", "x Q4_K_M"),
    "flags by :+": (
        'I=i.dat\nllama-quantize ${I:+--imatrix "$I"} m.gguf o.gguf Q4_K_M',
        "x Q4_K_M ~",
    ),
    "a here-document of rules": (
        "rules=$(cat <<EOF | tr '\\n' ',' | sed 's/,$//'\nattn_v=q8_0\nffn_up=q6_K\nEOF\n)\n"
        'llama-quantize --custom-q "$rules" m.gguf o.gguf IQ4_K',
        "x IQ4_K +2",
    ),
    # What no recipe says.
    "ik's types beside others": (
        "llama-quantize m.gguf a.gguf Q8_0\nllama-quantize m.gguf b.gguf IQ4_KSS",
        "a Q8_0\nb IQ4_KSS",
    ),
    "both engines": (
        "llama-quantize --custom-q 'a=q8_0' m.gguf a.gguf Q8_0\n"
        "llama-quantize --tensor-type b=q8_0 m.gguf b.gguf Q4_0",
        "2: a recipe has one flavour: here llama.cpp, before ik_llama.cpp",
    ),
    "a name that is no type": (
        "llama-quantize m.gguf o.gguf UD-Q4_K_XL",
        "1: `UD-Q4_K_XL` is no base type",
    ),
    "COPY": ("llama-quantize --keep-split m.gguf o.gguf COPY", "1: COPY changes no type"),
    "Windows' paths": (
        "llama-quantize.exe C:\\Users\\me\\a.gguf b.gguf Q4_0",
        "1: this is a command of Windows",
    ),
    "a card": (
        "# My quant\nMade with `llama-quantize`.\n\n<details>\n\n```bash\n#!/usr/bin/env bash\n"
        'custom="\n# attention\nattn_.*=q8_0\n"\ncustom=$(\n  echo "$custom" |'
        " grep -v '^#' | \\\n  sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'\n)\n./b/llama-quantize \\\n"
        '    --custom-q "$custom" --imatrix i.dat \\\n    m.gguf o-IQ4_KS.gguf IQ4_KS 192\n```\n\n'
        "```console\n$ ./llama-quantize m.gguf \\\n    o-Q8_0.gguf Q8_0\nmain: it's 'quantizing\n"
        "```\n\n```python\nprint('(')\n```\n",
        "o-IQ4_KS IQ4_KS +1 ~\no-Q8_0 Q8_0",
    ),
    "a card with prose behind its block": (
        "```bash\nllama-quantize m.gguf o.gguf Q4_0\n```\nThen quantize it (again), it's quick.\n",
        "x.md Q4_0",
    ),
    "a card with a fault": (
        "# My quant\n```sh\nllama-cli -m <it>\n```\n1. do\n   ```sh\n"
        "   ./llama-quantize m.gguf o.gguf Q4_KM\n"
        "   ```\n",
        "7: `Q4_KM` is no base type",
    ),
}


@pytest.mark.parametrize(
    ("word", "base"),
    [
        ("2", "Q4_0"),
        ("15", "Q4_K_M"),
        ("38", "MXFP4_MOE"),
        ("140", "IQ4_K"),
        ("q4_k", "Q4_K"),
        ("4", None),
        ("copy", None),
        ("m.gguf", None),
    ],
)
def test_a_base_type_by_its_name_or_by_the_number_of_the_engine(
    word: str, base: str | None
) -> None:
    assert base_type_of(Spanned(word)) == base


def given(path: Path) -> str:
    try:
        found = import_recipe(path)
    except RecipeError as error:
        return "\n".join(f"{p.line}: {p.message}" for p in error.problems if p.severity == "error")
    told = []
    for quant in found.loaded.quants:
        rules = f" +{len(quant.rules)}" if quant.rules else ""
        imatrix = quant.use_imatrix and found.loaded.recipe.imatrix is not None
        told.append(f"{quant.name} {quant.ftype}{rules}{' ~' if imatrix else ''}")
    return "\n".join(told)


@pytest.mark.parametrize("idiom", SCRIPTS)
def test_a_script_gives_its_quants_or_its_error(idiom: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[idiom]
    path = tmp_path / ("x.md" if "card" in idiom else "x.sh")
    path.write_text(script)
    found = given(path)
    assert found.startswith(expected) if ": " in expected else found == expected
    assert "names no base type" not in found


@pytest.mark.parametrize(
    "script",
    [
        ("x=" + "$(a " * 12 + ")" * 12 + "\n") * 100,
        "for a in 1 2 3 4 5 6 7 8 9 0; do " * 7 + "llama-quantize m o-$a Q4_0; " + "done; " * 7,
        "f() { f $(f); }\nf",
        "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'llama-quantize "${A[@]}"',
        "x=" + "a" * 1000 + "; for i in " + "a " * 20000 + "; do x+=$i; done",
        "x=" + "a" * 5000 + "; y=${x%%" + "*a" * 30 + "b}; llama-quantize $y",
        "```\nquantize a\n```\n" * (MAX_BLOCKS + 1),
        "(" * 50_000,
        "llama-quantize m.gguf o.gguf " + "a" * 400_000 + "{" + "b," * 200_000 + "}",
    ],
    ids=[
        "substitutions",
        "loops",
        "functions",
        "arrays",
        "texts",
        "patterns",
        "blocks",
        "parentheses",
        "braces",
    ],
)
def test_what_grows_without_end_is_refused_soon(script: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(script)
    started = time.monotonic()
    with pytest.raises((InputError, RecipeError)):
        import_recipe(tmp_path / "x")
    assert time.monotonic() - started < 20
