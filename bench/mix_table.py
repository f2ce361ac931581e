"""Every mix of a small space, replayed once: what searches are judged by, and repeated on.

Six groups of the demo draft in three types each are 729 mixes, four of the dense family 81, both on
all prompts of their recipes. A search that is given such a table in the place of
replays costs milliseconds, so that a hundred can be run, and what it misses is known, since the
best of every size is.

    python -m bench.mix_table tests/data/mixes_demo.npz      # some 20 minutes
    python -m bench.mix_table tests/data/mixes_dense.npz --recipe dense.yaml
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cook.build.prepare import prepare
from cook.cli.options import open_output
from cook.formats.arrays import Floats
from cook.formats.gguf import TensorInfo
from cook.formats.quant_types import by_name
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.paths import cook_home
from cook.search.evaluate import Replays, Replies
from cook.search.job import SearchJob, SearchRequest
from cook.search.space import Mix, Space, Tie

TYPES = ("q2_K", "q4_K", "q8_0")
AT_ONCE = 27


def by_group(space: Space) -> Space:
    """``space`` with each group in one tie."""
    groups: dict[str, list[int]] = {}
    for place, tie in enumerate(space.ties):
        groups.setdefault(tie.group, []).append(place)
    ties = tuple(
        Tie(group, group, None, tuple(t for i in places for t in space.ties[i].tensors))
        for group, places in groups.items()
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

    def __call__(self, mixes: Sequence[Mix], prompts: tuple[str, ...]) -> list[Replies]:
        return [self.replies(mix).on(prompts) for mix in mixes]

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
            tensors: dict[str, list[TensorInfo]] = {}
            rows = zip(data["groups"], data["tensors"], data["shapes"], strict=True)
            for group, name, shape in rows:
                sizes = tuple(int(n) for n in shape if n)
                tensors.setdefault(str(group), []).append(TensorInfo(str(name), sizes, f16, 0))
            ties = tuple(Tie(g, g, None, tuple(found)) for g, found in tensors.items())
            types = tuple(str(t) for t in data["types"])
            space = Space(ties, (types,) * len(ties), int(data["fixed_bytes"]))
            return cls(
                space,
                {mix: i for i, mix in enumerate(all_mixes(space))},
                tuple(str(x) for x in data["ids"]),
                tuple(str(x) for x in data["categories"]),
                *(np.asarray(data[k], np.float64) for k in _COLUMNS),
            )


_COLUMNS = ("tokens", "drafted", "accepted", "nll", "kld")


def make(recipe: str, types: Sequence[str], to: Path, jobs: int) -> None:
    """Replay all mixes of ``recipe``'s draft in ``types``, and write the table."""
    output = open_output()
    request = SearchRequest(Path(recipe), 1 << 40, to, types=tuple(types), threads=1)
    job = SearchJob.of(request, prepare(request.recipe, threads=1, output=output))
    prompts = (*(name for share in job.rounds for name in share), *job.verdict)
    space = by_group(job.space)
    mixes = all_mixes(space)
    found: list[Replies] = []
    home = cook_home()
    with Executor(Store(home / "store"), output, logs=home / "logs", jobs=jobs, threads=1) as run:
        replays = Replays(job.deployed, space, run)
        replays.prepare()
        for first in range(0, len(mixes), AT_ONCE):
            found += replays(mixes[first : first + AT_ONCE], prompts)
    tensors = [(tie.group, t.name, t.shape) for tie in space.ties for t in tie.tensors]
    np.savez_compressed(
        to,
        groups=np.array([group for group, _, _ in tensors]),
        tensors=np.array([name for _, name, _ in tensors]),
        shapes=np.array([(*shape, 0, 0, 0)[:4] for _, _, shape in tensors]),
        fixed_bytes=np.array(space.fixed_bytes),
        types=np.array(space.types[0]),
        ids=np.array(prompts),
        categories=np.array(found[0].categories),
        tokens=found[0].tokens.astype(np.int32),
        drafted=np.array([r.drafted for r in found], np.int16),
        accepted=np.array([r.accepted for r in found], np.int16),
        nll=np.array([r.nll for r in found], np.float32),
        kld=np.array([r.kld for r in found], np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("to", type=Path)
    parser.add_argument("--recipe", default="recipes/demo.yaml")
    parser.add_argument("--type", action="append", dest="types")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    make(asked.recipe, asked.types or TYPES, asked.to, asked.jobs)


if __name__ == "__main__":
    main()
