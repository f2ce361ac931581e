"""Scripts in the idioms of the field: each gives its quants, or an error at the line that it is."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from cook.errors import InputError, RecipeError
from cook.recipe.foreign.importing import import_recipe
from cook.recipe.foreign.scripts import MAX_BLOCKS, base_type_of
from cook.recipe.foreign.text import Spanned

# What a command gives stands behind it, `#= OUT TYPE`, with `+N` for rules and `~` for the recipe's
# imatrix; in brackets, where it was found. A recipe has one source: here one that is named.
NAMED = r"""
./llama-quantize --imatrix ../m/i.gguf --allow-requantize --output-tensor-type q8_0 \
  --token-embedding-type q8_0 m.gguf k_l.gguf q4_k_m  #= k_l Q4_K_M +2 ~ (ik_llama.cpp issue 659)
docker run -v /m:/m ghcr.io/ggml-org/llama.cpp:full --quantize m.gguf b1.gguf 15  #= b1 Q4_K_M
sudo docker run --rm image /app/llama-quantize m.gguf b2.gguf Q6_K                #= b2 Q6_K
llama quantize --pure m.gguf b3.gguf q5_0 8         #= b3 Q5_0
"$1" --imatrix ../m/i.gguf m.gguf b4.gguf Q4_K_M    #= b4 Q4_K_M ~
./my-quantize-avx2 m.gguf b5.gguf iq4_nl            #= b5 IQ4_NL
time nice -n 19 taskset -c 0-7 env A=b CUDA_VISIBLE_DEVICES= ./llama-quantize m.gguf b6.gguf Q4_0
                                                    #= b6 Q4_0
set -o pipefail
if ! CUDA_VISIBLE_DEVICES= ./llama-quantize m.gguf b7.gguf Q3_K_M |& tee l; then
  exit 1
fi && ./llama-quantize m.gguf b8.gguf Q2_K &        #= b7 Q3_K_M, b8 Q2_K
log=$(./llama-quantize m.gguf b9.gguf Q4_K_M 2>&1 | grep size)  #= b9 Q4_K_M
exec > >(tee -a log) 2>&1
if [ -f i.dat ]; then
  llama-quantize --imatrix ../m/i.gguf m.gguf c.gguf Q4_K_M
else
  llama-quantize m.gguf c.gguf Q4_K_M || llama-quantize m.gguf c.gguf Q4_K_M
fi                                                  #= c Q4_K_M ~, c-2 Q4_K_M
CMD="./llama-quantize --pure m.gguf c1.gguf Q4_0"
echo "$CMD"
eval "$CMD"                                         #= c1 Q4_0
echo "llama-quantize m.gguf a.gguf Q8_0" >> log
usage() { cat <<EOF
Usage: llama-quantize m.gguf b.gguf Q4_0
EOF
}
llama-quantize m.gguf c2.gguf Q8_0 || usage         #= c2 Q8_0
T="Q8_0 Q4_0"
for t in $T; do llama-quantize m.gguf "d-${t,,}.gguf" "$t" $(nproc); done
                                                    #= d-q8_0 Q8_0, d-q4_0 Q4_0
A=(Q4_0 Q5_0)
for i in "${!A[@]}"; do llama-quantize m.gguf e-$i.gguf ${A[$i]}; done  #= e-0 Q4_0, e-1 Q5_0
for i in $(seq 0 1); do llama-quantize m.gguf g-$i.gguf ${A[$i]}; done  #= g-0 Q4_0, g-1 Q5_0
for q in Q{4,5}_K_M; do llama-quantize m.gguf k-$q.gguf $q; done
                                                    #= k-Q4_K_M Q4_K_M, k-Q5_K_M Q5_K_M
one() {
  local type=$1; shift
  llama-quantize "$@" m.gguf "n-$type.gguf" "$type"
}
one Q4_K_M --imatrix ../m/i.gguf                    #= n-Q4_K_M Q4_K_M ~
one Q8_0                                            #= n-Q8_0 Q8_0
two() { llama-quantize m.gguf o-$V.gguf $V; }
V=Q4_0 two                                          #= o-Q4_0 Q4_0
F=(--tensor-type attn_v=q8_0)
F+=(--tensor-type 'ffn_down=q6_K')
llama-quantize "${F[@]}" m.gguf o.gguf Q4_K_M       #= o Q4_K_M +2
I=../m/i.gguf
llama-quantize ${I:+--imatrix "$I"} m.gguf p.gguf Q4_K_M  #= p Q4_K_M ~
"""
# And one that is known only when the script runs.
UNNAMED = r"""
qnt=(q8_0 q6_k)
args=""
if [ ! -z "$3" ]; then
    args="$3"
fi
for q in ${qnt[@]}; do
    time ./bin/llama-quantize ../m/$model/m.gguf ../m/$model/${q}.gguf ${q} 2>&1 ${args} | tee l
done                #= q8_0 Q8_0, q6_k Q6_K (scripts/qnt-all.sh of llama.cpp)
../build/bin/quantize ${model}/f16.gguf ${model}/q4_1.gguf 3  #= q4_1 Q4_1 (embeddings.cpp)
if [ ! -x "$B/quantize" ]; then echo "no quantize at $B/quantize"; fi
IN=${1:?"input gguf required"}
QTYPE=${3:-Q4_K_S}
DIR=${DIR:-"./llama.cpp"}
cmake --build "${DIR}/build" -j --target llama-quantize llama-cli
cp build/bin/llama-quantize .
"$DIR/quantize" "$IN" "${IN%.gguf}-$QTYPE.gguf" "$QTYPE"  #= Q4_K_S Q4_K_S
for f in *-f16.gguf; do
  llama-quantize "$f" "${f/f16/Q5_1}" Q5_1          #= Q5_1 Q5_1
done
i=0
while :; do
  llama-quantize m-$i.gguf h.gguf Q4_0              #= h Q4_0
  let i++
done
while read -r f; do
  U=Q4_0
  llama-quantize $f h-$U.gguf $U                    #= h-Q4_0 Q4_0
done < list
"""
# What stands alone in its file: `x.sh`, or the card `x.md`.
ALONE = {
    "./quantize ./models/7B/f16.bin ./models/7B/q4_0.bin 2": "x Q4_0",
    'llama-quantize "$IN" out.gguf Q4_K_M': "x Q4_K_M",
    "rules=$(cat <<EOF | tr '\\n' ',' | sed 's/,$//'\nattn_v=q8_0\nffn_up=q6_K\nEOF\n)\n"
    'llama-quantize --custom-q "$rules" m.gguf o.gguf IQ4_K': "x IQ4_K +2",
    "llama-quantize m.gguf a.gguf Q8_0\nllama-quantize m.gguf b.gguf IQ4_KSS": (
        "a Q8_0, b IQ4_KSS"
    ),
    "# A card\nMade with `llama-quantize`.\n\n<details>\n\n```bash\n#!/usr/bin/env bash\n"
    'custom="\n# attention\nattn_.*=q8_0\n"\ncustom=$(\n  echo "$custom" |'
    " grep -v '^#' | \\\n  sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'\n)\n./b/llama-quantize \\\n"
    '    --custom-q "$custom" --imatrix i.dat \\\n    m.gguf o-IQ4_KS.gguf IQ4_KS 192\n```\n\n'
    "```console\n$ ./llama-quantize m.gguf \\\n    o-Q8_0.gguf Q8_0\nmain: it's 'quantizing\n"
    "```\n\n```python\nprint('(')\n```\nThen (again), it's quick.\n": (
        "o-IQ4_KS IQ4_KS +1 ~, o-Q8_0 Q8_0"
    ),
}
# An error, `#! TEXT`, stands in the line where it is or under it.
REFUSED = r"""
qnt=(q8_0 q6_k)
if [ ! -z "$2" ]; then
    qnt=($2)
fi
for q in ${qnt[@]}; do
    llama-quantize m.gguf ${q}.gguf ${q}
    #! the base type: not computed: `for q` runs over it: it is assigned inside `if` (line 4)
done
./llama-quantize f16.gguf Q4_K_M Q8_0
#! llama-quantize does not take `Q8_0` as the number of threads
./llama-quantize a-bf16.gguf a-UD.gguf F32 --tensor-type output.weight=Q6_K
#! llama-quantize takes no option behind the files: --tensor-type
./build/bin/llama-quantize --attn-q-type q6_K --imatrix i.dat a.gguf b.gguf IQ3_K
#! a recipe cannot say --attn-q-type
$LLAMA/quantize in.gguf out.gguf $1
#! the base type: not computed: `$1` is known only when it runs
llama-quantize m.gguf o.gguf UD-Q4_K_XL         #! `UD-Q4_K_XL` is no base type
llama-quantize --keep-split m.gguf o.gguf COPY  #! COPY changes no type
docker run --entrypoint /app/llama-quantize image a.gguf b.gguf Q6_K
#! which words of `--entrypoint` are llama-quantize's is not computed
"$QUANTIZE" "$IN" "$OUT" "$TYPE"
#! the base type: not computed: the script does not set $TYPE
T=Q4_0 llama-quantize m.gguf m.gguf $T
#! the base type: not computed: the script does not set $T
bash -c './llama-quantize "a b.gguf" c.gguf Q4_0 > log'
#! a llama-quantize command in a text for `bash` is not computed
echo "./llama-quantize a.gguf b.gguf Q4_0" | tee log | bash
#! a llama-quantize command in a text for `bash` is not computed
for q in Q4_0; do echo "llama-quantize m.gguf o-$q.gguf $q"; done | qsub
#! a llama-quantize command in a text for `qsub` is not computed
echo "./llama-quantize m.gguf o.gguf Q4_K_M" >> job.sh
#! a llama-quantize command in a text for `echo` is not computed
find . -name '*f16.gguf' -exec ./llama-quantize {} {}.q4.gguf Q4_0 \;
#! what `find` gives to llama-quantize is known only when it runs
echo Q4_0 Q5_0 | xargs -n1 -I{} llama-quantize a.gguf a-{}.gguf {}
#! what `xargs` gives to llama-quantize is known only when it runs
A=(Q4_0 Q5_0)
until ((k == 2)); do
  llama-quantize m.gguf m.gguf ${A[k]}
  #! the base type: not computed: the index `k` is not computed
  ((k++))
done
t=Q4_0
while :; do
  llama-quantize m.gguf m.gguf $t
  #! the base type: not computed: it changes in the loop (line 45)
  t=Q5_0
done
for f in *.gguf; do R+=,a=q8_0; llama-quantize --custom-q a=q8_0$R $f Q4_0; done
#! what --custom-q is given is not known without running the script: it changes in the
for q in Q{4,5}_K_M {1..3}; do llama-quantize m.gguf m-$q.gguf $q; done
#! the base type: not computed: `for q` runs over it: braces that make several words
while read -r q; do
  ./llama-quantize m.gguf m-$q.gguf $q
  #! the base type: not computed: `read` takes it from a pipe or a file (line 54)
done < types.txt
declare -A K=([small]=Q4_0 [big]=Q8_0)
for k in small big; do llama-quantize m.gguf $k.gguf "${K[$k]}"; done
#! the base type: not computed: arrays with keys are not computed (line 58)
make_one() {
  llama-quantize m.gguf m-$1.gguf $1
  #! this command is in `make_one`, which the script does not call as such
}
parallel make_one ::: Q4_0 Q5_0
if [ -f i.dat ]; then I="--imatrix i.dat"; fi
llama-quantize $I m.gguf o.gguf Q4_K_M
#! the options: not computed: it is assigned inside `if` (line 66)
llama-quantize $FLAGS in.gguf Q4_K_M
#! the options or the source: not computed: the script does not set $FLAGS
"""
# The same of a file of its own.
REFUSED_ALONE = {
    "ssh box <<'EOF'\ncd llama.cpp\n./llama-quantize a.gguf b.gguf Q4_0\nEOF": (
        "1: a llama-quantize command in a text for `ssh` is not computed"
    ),
    "llama-quantize m.gguf a.gguf Q8_0\ncat > run.sh <<EOF\nllama-quantize m.gguf b.gguf Q4_0\n"
    "EOF\nbash run.sh": "2: a llama-quantize command in a text for `cat` is not computed",
    'echo "./llama-quantize m.gguf o.gguf Q4_K_M"': (
        "1: how this llama-quantize command is run is not computed"
    ),
    "llama-quantize --custom-q 'a=q8_0' m.gguf a.gguf Q8_0\n"
    "llama-quantize --tensor-type b=q8_0 m.gguf b.gguf Q4_0": (
        "2: a recipe has one flavour: here llama.cpp, before ik_llama.cpp"
    ),
    "llama-quantize.exe C:\\Users\\me\\a.gguf b.gguf Q4_0": "1: this is a command of Windows",
    "# A card\n```sh\nllama-cli -m <it>\n```\n1. do\n   ```sh\n"
    "   ./llama-quantize m.gguf o.gguf Q4_KM\n   ```\n": "7: `Q4_KM` is no base type",
}


def given(tmp_path: Path, script: str) -> str:
    path = tmp_path / ("x.md" if script.startswith("# A card") else "x.sh")
    path.write_text(script)
    found = import_recipe(path)
    quants = []
    for quant in found.loaded.quants:
        rules = f" +{len(quant.rules)}" if quant.rules else ""
        imatrix = quant.use_imatrix and found.loaded.recipe.imatrix is not None
        quants.append(f"{quant.name} {quant.ftype}{rules}{' ~' if imatrix else ''}")
    return ", ".join(quants)


def errors(tmp_path: Path, script: str) -> dict[int, str]:
    with pytest.raises(RecipeError) as caught:
        given(tmp_path, script)
    return {p.line: p.message for p in caught.value.problems if p.severity == "error"}


@pytest.mark.parametrize("script", [NAMED, UNNAMED], ids=["named", "unnamed"])
def test_a_script_gives_its_quants(script: str, tmp_path: Path) -> None:
    expected = re.findall(r"#= ([^(\n]*[^(\s])", script)
    assert given(tmp_path, script).split(", ") == ", ".join(expected).split(", ")


@pytest.mark.parametrize("script", ALONE)
def test_a_file_with_one_command_or_a_card_gives_its_quants(script: str, tmp_path: Path) -> None:
    assert given(tmp_path, script) == ALONE[script]


def test_a_script_gives_its_errors(tmp_path: Path) -> None:
    expected = {
        number - line.lstrip().startswith("#!"): line.split("#! ")[1]
        for number, line in enumerate(REFUSED.splitlines(), 1)
        if "#! " in line
    }
    found = errors(tmp_path, REFUSED)
    assert {at: found[at][: len(text)] for at, text in expected.items() if at in found} == expected
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("script", REFUSED_ALONE)
def test_a_file_gives_its_first_error(script: str, tmp_path: Path) -> None:
    ((line, message), *_) = errors(tmp_path, script).items()
    assert f"{line}: {message}".startswith(REFUSED_ALONE[script])


def test_a_base_type_by_its_name_or_by_the_number_of_the_engine() -> None:
    named = {"2": "Q4_0", "38": "MXFP4_MOE", "140": "IQ4_K", "q4_k": "Q4_K"}
    none = ("4", "copy", "m.gguf")
    for word, base in {**named, **dict.fromkeys(none)}.items():
        assert base_type_of(Spanned(word)) == base


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
    ids=range(9),
)
def test_what_grows_without_end_is_refused_soon(script: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(script)
    started = time.process_time()
    with pytest.raises((InputError, RecipeError)):
        import_recipe(tmp_path / "x")
    assert time.process_time() - started < 20
