"""Trains the demo pair. Subcommands, in order:

corpus     wheels -> documents, held-out texts and prompts
tokenizer  documents -> tokenizer.json
texts      held-out modules -> calibration and evaluation texts, prompts
target     the target, and beside it the draft on the target's logits
           (then `python -m tools.demo.generate`: text that the target itself writes)
distill    the draft on the target's logits over that text
export     checkpoints -> GGUF

    python -m tools.demo.train corpus --wheels DIR --work DIR
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from tools.demo import corpus, export, heldout, tokenizer
from tools.demo.config import DRAFT, TARGET, ModelConfig

SEED = 20261121
# All matrices but the routed experts and the embeddings.
DENSE = ("attn_", "ffn_gate.", "ffn_up.", "ffn_down.", "_shexp", "output.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    commands = parser.add_subparsers(required=True)
    for run in (run_corpus, run_tokenizer, run_texts, run_target, run_distill, run_export):
        command = commands.add_parser(run.__name__.removeprefix("run_"), help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("--work", type=Path, required=True, help="folder for what is made")
        command.add_argument("--wheels", type=Path, help="folder of the downloaded wheels")
        command.add_argument("--steps", type=int, default=200)
        command.add_argument("--layers", type=int, help="train at this depth, then grow")
        command.add_argument("--resume", type=Path, help="checkpoint to go on from")
        command.add_argument("--skip", type=int, default=0, help="windows of 4096 already seen")
        command.add_argument("--decay", type=float, default=0.5, help="share of the descent")
        command.add_argument("--rate", type=float, default=1.0, help="factor on learning rates")
        command.add_argument("--long", type=int, default=6, help="every n-th batch is 2 x 2048")
        command.add_argument("--length", type=int, default=512, help="length of other windows")
        command.add_argument("--name", default="pair", help="name of the checkpoint written")
        command.add_argument("--updates", type=int, default=2, help="target's steps per batch")
        command.add_argument("--dense-f16", action="store_true", help="q8_0 for experts only")
        command.add_argument("--text", type=Path, help="the .bin to train on")
    arguments = parser.parse_args()
    arguments.run(arguments)


def run_corpus(arguments: argparse.Namespace) -> None:
    """wheels -> documents"""
    held_out = corpus.build(arguments.wheels, arguments.work, random.Random(SEED))
    print(json.dumps(held_out))


def run_tokenizer(arguments: argparse.Namespace) -> None:
    """documents -> tokenizer.json and train.bin"""
    work: Path = arguments.work
    documents = json.loads((work / "documents.json").read_text(encoding="utf-8"))
    tokenizer.train(documents["train"], TARGET.n_vocab, work / "tokenizer.json")
    loaded = tokenizer.load(work / "tokenizer.json")
    for part in ("train", "focus", "evaluation"):
        ids = tokenizer.encoded(loaded, documents[part])
        ids.tofile(work / f"{part}.bin")
        print(part, len(ids), "tokens", sum(map(len, documents[part])), "characters")


def run_texts(arguments: argparse.Namespace) -> None:
    """held-out modules -> calibration and evaluation texts and prompts"""
    data = Path(__file__).parents[2] / "cook" / "demo" / "data"
    print(json.dumps(heldout.write_texts(arguments.work, data, random.Random(SEED))))


def run_target(arguments: argparse.Namespace) -> None:
    """the target, and beside it the draft on the target's logits"""
    from tools.demo import training

    training.train_pair(training.Options.of(arguments), SEED)


def run_distill(arguments: argparse.Namespace) -> None:
    """the draft on the target's logits over text the target wrote"""
    from tools.demo import training

    training.distill(training.Options.of(arguments), SEED)


def run_export(arguments: argparse.Namespace) -> None:
    """checkpoint -> target-q8_0.gguf and draft-f16.gguf"""
    import torch

    vocabulary = export.Vocabulary.read(arguments.work / "tokenizer.json")
    state: dict[str, Any] = torch.load(arguments.resume)
    pairs: tuple[tuple[str, ModelConfig, str], ...] = (
        ("target", TARGET, "q8_0"),
        ("draft", DRAFT, "f16"),
    )
    for role, config, kind in pairs:
        weights = {n: state[role][n.replace(".", "__")].numpy() for n in config.tensor_shapes()}
        path = arguments.work / f"{role}-{kind}.gguf"
        plain = DENSE if arguments.dense_f16 else ()
        export.write_gguf(path, config, weights, vocabulary, kind, plain)
        print(path, path.stat().st_size, time.strftime("%H:%M:%S"))


if __name__ == "__main__":
    main()
