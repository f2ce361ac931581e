"""``python -m tools.clock_recipes FOLDER``: the recipes with a head of ``bench.by_clock``, from 256
to 16,384 tokens, with their prompts and the pair of real proportions below the longer ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import Template

from cook.demo.unpack import SHIPPED, SHIPPED_HEAD, unpack
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import copy_of, encode, write_gguf_file
from cook.paths import demo_dir

BYTES_A_TOKEN, LAYERS, LONGEST = 2.9, 5, 32_768
TRAINED = 4_096
"""Tokens that the demo's target was trained on: a server gives no more."""
RECIPE = Template("""\
version: 1
name: head-$name
drafts: [{name: head, source: target}$draft]
score:
  target: {source: "$target", args: {threads: $threads}}
  prompts: $prompts
  max_tokens: $reply
  context: $context
  sampling: {temperature: 0}
  draft: {n_max: [2, 4], args: {threads: $threads}}
  live_budget: {minutes: $minutes}
pick: {maximize: end_to_end_speed}
""")
DEMO, OTHER = "demo://target.gguf", ', {name: draft, source: "demo://draft-f16.gguf"}'
CELLS = [
    # tokens of a prompt, prompts, reply, threads, minutes of live runs, on the demo
    (256, 24, 96, 1, 4, True),
    (256, 24, 96, 1, 4, False),
    (3_072, 8, 96, 1, 12, True),
    (4_096, 6, 96, 1, 12, False),
    (16_384, 8, 64, 2, 15, False),
]


def pair(path: Path) -> None:
    """The demo's target with fewer layers in front, for long prompts: its weights lie beyond a
    processor's cache, its head's within."""
    model, head = (read_gguf(demo_dir() / name) for name in (SHIPPED, SHIPPED_HEAD))
    unpack(model, path, head, layers_in_front=LAYERS)
    made = read_gguf(path)
    metadata = made.raw_metadata() | {"glm4moe.context_length": encode(LONGEST)}
    longer = path.with_suffix(".longer")
    write_gguf_file(longer, metadata, [copy_of(made, t.name) for t in made.tensors])
    longer.replace(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pair(folder / "pair.gguf")
    data = demo_dir() / "data"
    text = "".join(
        (data / name).read_text("utf-8") for name in ("evaluation.txt", "calibration.txt")
    )
    for tokens, count, reply, threads, minutes, demo in CELLS:
        size, prompts = int(tokens * BYTES_A_TOKEN), folder / f"p{tokens}.jsonl"
        step = min(size, (len(text) - size) // (count - 1))  # no more overlap than needed
        rows = [
            {"id": f"r{i:02}", "category": "text", "prompt": text[at : at + size]}
            for i, at in enumerate(range(0, count * step, step))
        ]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        name = f"{'demo' if demo else 'pair'}-{tokens}"
        room = -(-int(tokens * 1.35 + reply + 64) // 256) * 256
        recipe = RECIPE.substitute(
            name=name,
            draft=OTHER if demo else "",
            target=DEMO if demo else folder.absolute() / "pair.gguf",
            prompts=prompts.absolute(),
            reply=reply,
            threads=threads,
            minutes=minutes,
            context=min(room, TRAINED) if demo else room,
        )
        (folder / f"{name}.yaml").write_text(recipe, "utf-8")
        print(folder / f"{name}.yaml")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
