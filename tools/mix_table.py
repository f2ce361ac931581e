"""Every mix of a small space, replayed once: what searches are judged by, and repeated on.

Three types each for six parts of a model are 729 mixes: of the demo draft its six groups, of the
dense family's (``tools/demo/dense.py``) attention and network of each of two layers, embeddings and
output. All are replayed on the same prompts, beginnings cut from text that no training saw. Given
such a table in the place of replays a search costs milliseconds, so that a hundred can be run, and
what it misses is known, since the best of every size is.

    python -m tools.mix_table demo      # half an hour alone; writes tests/data/mixes_demo.npz
    python -m tools.mix_table dense
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cook.cli.options import open_output
from cook.formats.arrays import Floats
from cook.formats.gguf import TensorInfo
from cook.formats.quant_types import by_name
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.job.prepare import prepare
from cook.paths import cook_home, demo_dir
from cook.search.evaluate import Replays, Replies
from cook.search.prepared import PreparedSearch, SearchRequest
from cook.search.space import Mix, Space, Tie
from tools.demo.dense import dense_pair

DATA = Path(__file__).parent.parent / "tests" / "data"
PROMPTS = 128
LETTERS = 180
"""Of a prompt at most; three make about a token."""
AT_ONCE = 27
RECIPE = """\
version: 1
name: mixes-{family}
engine: bundled
model: {{source: "{draft}"}}
imatrix: {{corpus: "demo://data/calibration.txt", context: 512, chunks: 40, args: {{threads: 1}}}}
quants: [{{name: Q8_0, type: Q8_0}}]
score:
  target: {{source: "{target}", args: {{threads: 1, flash_attention: false}}}}
  prompts: {prompts}
  max_tokens: 80
  context: 1024
  sampling: {{temperature: 0}}
  draft: {{args: {{threads: 1}}}}
"""


@dataclass(frozen=True)
class Family:
    """One table: ``pair`` gives (target, draft), ``by_layer`` whether layers differ in type."""

    by_layer: bool
    pair: Callable[[], tuple[str, str]]


def _demo() -> tuple[str, str]:
    return "demo://target-q8_0.gguf", "demo://draft-f16.gguf"


def _dense() -> tuple[str, str]:
    pair = dense_pair(cook_home() / "dense")
    return str(pair.target), str(pair.draft)


FAMILIES: Mapping[str, Family] = {"demo": Family(False, _demo), "dense": Family(True, _dense)}
TYPES = ("q2_K", "q4_K", "q8_0")


def table_of(family: str) -> Path:
    """The file of a family's table."""
    return DATA / f"mixes_{family}.npz"


def prompts() -> list[dict[str, str]]:
    """Lines of the demo's held-out text, evenly from its start to its end, as beginnings; what it
    has twice once."""
    text = (demo_dir() / "data" / "evaluation.txt").read_text(encoding="utf-8")
    found: dict[str, None] = {}
    for number in range(PROMPTS):
        start = text.index("\n", number * (len(text) - 2 * LETTERS) // PROMPTS) + 1
        found[text[start : text.rindex("\n", start, start + LETTERS)].strip("\n")] = None
    return [
        {"id": f"continue-{number:03}", "category": "continue", "prompt": beginning}
        for number, beginning in enumerate(found)
    ]


def tied(space: Space, by_layer: bool) -> Space:
    """``space`` with each group, or each group of a layer, in one tie."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for place, tie in enumerate(space.ties):
        groups.setdefault((tie.group, tie.layer if by_layer else None), []).append(place)
    ties = tuple(
        Tie(group, group, layer, tuple(t for i in places for t in space.ties[i].tensors))
        for (group, layer), places in groups.items()
    )
    types = tuple(space.types[places[0]] for places in groups.values())
    return replace(space, ties=ties, types=types)


def all_mixes(space: Space) -> list[Mix]:
    return list(itertools.product(*space.types))


@dataclass(frozen=True, eq=False)
class MixTable:
    """What every mix of ``space`` does on every prompt [mixes, prompts]; an evaluator."""

    space: Space
    place: dict[Mix, int]
    ids: tuple[str, ...]
    categories: tuple[str, ...]
    tokens: Floats
    drafted: Floats
    accepted: Floats
    nll: Floats
    kld: Floats

    def __call__(self, mix: Mix, prompts: tuple[str, ...]) -> Replies:
        return self.replies(mix).on(prompts)

    def replies(self, mix: Mix) -> Replies:
        """Of one mix, on all prompts."""
        i = self.place[mix]
        rows = (self.drafted[i], self.accepted[i], self.nll[i], self.kld[i])
        return Replies(self.ids, self.categories, self.tokens, *rows)

    @classmethod
    def read(cls, path: Path) -> MixTable:
        """The table of ``path``."""
        f16 = by_name("f16").id
        with np.load(path, allow_pickle=False) as data:
            tensors: dict[tuple[str, int], list[TensorInfo]] = {}
            keys = ("groups", "layers", "tensors", "shapes")
            for group, layer, name, shape in zip(*(data[k] for k in keys), strict=True):
                sizes = tuple(int(n) for n in shape if n)
                one = TensorInfo(str(name), sizes, f16, 0)
                tensors.setdefault((str(group), int(layer)), []).append(one)
            ties = tuple(
                Tie(group, group, layer if layer >= 0 else None, tuple(found))
                for (group, layer), found in tensors.items()
            )
            types = tuple(str(t) for t in data["types"])
            space = Space(ties, (types,) * len(ties), int(data["fixed_bytes"]))
            return cls(
                space,
                {mix: i for i, mix in enumerate(all_mixes(space))},
                tuple(str(x) for x in data["ids"]),
                tuple(str(x) for x in data["categories"]),
                np.asarray(data["tokens"], np.float64),
                *(np.asarray(data[k], np.float64).T for k in _COLUMNS),
            )


_COLUMNS = ("drafted", "accepted", "nll", "kld")


def make(family: str, jobs: int) -> None:
    """Replay all mixes of a family, and write its table."""
    asked, output, home = FAMILIES[family], open_output(), cook_home()
    target, draft = asked.pair()
    recipe, texts = home / f"mixes-{family}.yaml", home / "mixes.jsonl"
    texts.write_text("".join(json.dumps(line) + "\n" for line in prompts()), encoding="utf-8")
    recipe.write_text(
        RECIPE.format(family=family, draft=draft, target=target, prompts=texts), encoding="utf-8"
    )
    to = table_of(family)
    request = SearchRequest(recipe, 1 << 40, to, types=TYPES, threads=1)
    job = PreparedSearch.of(request, prepare(recipe, threads=1, output=output))
    ids = (*job.prompts, *job.verdict)
    space = tied(job.space, asked.by_layer)
    mixes = all_mixes(space)
    found: list[Replies] = []
    with Executor(Store(home / "store"), output, logs=home / "logs", jobs=jobs, threads=1) as run:
        replays = Replays(job.deployed, space, run)
        replays.prepare()
        for first in range(0, len(mixes), AT_ONCE):
            files = map(replays.file_of, map(space.tensor_types, mixes[first : first + AT_ONCE]))
            found += replays.of_files([*files], ids)
            output.say(f"{len(found)} of {len(mixes)} mixes")
    tensors = [(tie.group, tie.layer, t.name, t.shape) for tie in space.ties for t in tie.tensors]
    # Sums over a reply to four digits: half the bytes, and no search can tell.
    np.savez_compressed(
        to,
        groups=np.array([group for group, _, _, _ in tensors]),
        layers=np.array([-1 if layer is None else layer for _, layer, _, _ in tensors]),
        tensors=np.array([name for _, _, name, _ in tensors]),
        shapes=np.array([(*shape, 0, 0, 0)[:4] for _, _, _, shape in tensors]),
        fixed_bytes=np.array(space.fixed_bytes),
        types=np.array(space.types[0]),
        ids=np.array(ids),
        categories=np.array(found[0].categories),
        tokens=found[0].tokens.astype(np.int32),
        drafted=np.array([r.drafted for r in found], np.int16).T,
        accepted=np.array([r.accepted for r in found], np.int16).T,
        nll=np.array([r.nll for r in found], np.float16).T,
        kld=np.array([r.kld for r in found], np.float16).T,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    make(asked.family, asked.jobs)


if __name__ == "__main__":
    main()
