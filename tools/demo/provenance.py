"""Writes NOTICE and provenance.json: whose text trained the pair, and how.

python -m tools.demo.provenance --work DIR --wheels DIR --measured FILE.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.demo.config import DRAFT, HEAD, TARGET, ModelConfig
from tools.demo.corpus import FOCUS

HERE = Path(__file__).parents[2] / "cook" / "demo"
_INTRODUCTION = """\
The demo models and texts in cook/demo were made from the Python source code of the packages
below, and from text of our own. The texts in cook/demo/data are excerpts of that source code,
normalised, under the same licences. Each package's own licence follows.
"""
_PROOFS = ("LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes NOTICE and provenance.json.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--measured", type=Path, help="JSON of measured figures to include")
    arguments = parser.parse_args()
    sources = json.loads((arguments.work / "sources.json").read_text(encoding="utf-8"))
    (HERE / "NOTICE").write_text(notice(sources, arguments.wheels), encoding="utf-8")
    measured = json.loads(arguments.measured.read_text()) if arguments.measured else {}
    document = provenance(sources, arguments.work) | {"measured": measured}
    text = json.dumps(document, indent=1) + "\n"
    (HERE / "provenance.json").write_text(text, encoding="utf-8")


def notice(sources: list[dict[str, str]], wheels: Path) -> str:
    parts = [_INTRODUCTION]
    for source in sources:
        title = f"{source['package']} {source['version']} ({source['licence']})"
        parts.append(f"\n{'=' * 78}\n{title}\n{source['file']}\nsha256 {source['sha256']}\n\n")
        parts += _licences(source, wheels)
    return "".join(parts)


def _licences(source: dict[str, str], wheels: Path) -> list[str]:
    if source["package"] == "cpython":
        return [(Path(sysconfig.get_path("stdlib")) / "LICENSE.txt").read_text(encoding="utf-8")]
    with zipfile.ZipFile(wheels / source["file"]) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" in n]
        kept = [n for n in names if n.rsplit("/", 1)[1] in (*_PROOFS, "NOTICE")]
        # The shallowest are the package's own; deeper ones are of code that we leave out.
        depth = min(n.count("/") for n in kept)
        found = [archive.read(n).decode("utf-8") for n in kept if n.count("/") == depth]
    return [text.split("\n----\n")[0].rstrip() + "\n" for text in found]


def provenance(sources: list[dict[str, str]], work: Path) -> dict[str, Any]:
    names = ["target-q8_0.gguf", "draft-f16.gguf", "head-q8_0.gguf", "NOTICE"]
    names += [f"data/{p.name}" for p in sorted((HERE / "data").iterdir())]
    packages = ("torch", "tokenizers", "gguf", "numpy")
    return {
        "files": {name: _file(HERE / name) for name in names},
        "models": {"target": _model(TARGET), "draft": _model(DRAFT), "head": _model(HEAD)},
        "corpus": {"sources": sources, "focus": FOCUS},
        "tokenizer": {"kind": "byte-level BPE, pre-tokenizer gpt-2", "tokens": TARGET.n_vocab},
        "training": json.loads((work / "stages.json").read_text(encoding="utf-8")),
        "loss": {p.name.split(".")[0]: _curve(p) for p in sorted(work.glob("*.log.jsonl"))},
        "tools": {name: metadata.version(name) for name in packages}
        | {"python": platform.python_version()},
    }


def _file(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _model(config: ModelConfig) -> dict[str, object]:
    total = active = 0
    for name, shape in config.tensor_shapes().items():
        size = 1
        for length in shape:
            size *= length
        total += size
        if name != "token_embd.weight":
            active += size * config.n_expert_used // shape[0] if "_exps" in name else size
    return config.as_dict() | {"parameters": total, "active_parameters": active}


def _curve(path: Path) -> dict[str, Any]:
    """Every tenth of a stage, averaged over its rows."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    step = max(1, len(rows) // 10)
    keys = [key for key in ("loss", "kl", "agree", "agree_2", "agree_3") if key in rows[0]]
    curve = []
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        means = {key: round(sum(r[key] for r in part) / len(part), 4) for key in keys}
        curve.append({"step": part[0]["step"]} | means)
    return {"steps": len(rows), "seconds": rows[-1]["seconds"], "curve": curve}


if __name__ == "__main__":
    main()
