"""Stands in for llama.cpp's converter (commit 0c1e570), which needs torch.

The beginning of the model's name says what it does: each is what the real one was seen to do
with a made-up model of 21 tensors, and the ``.txt`` files beside it are what the real one wrote
to stderr then. ``ok`` "converts" by copying ``ready.gguf`` beside the script.
"""

import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
folder, output = Path(sys.argv[1]), Path(sys.argv[sys.argv.index("--outfile") + 1])
behaviour = folder.name.partition("_")[0]
ready = HERE / "ready.gguf"

if behaviour == "echo":  # for tests of what it gets
    import json
    import os

    seen = {"files": sorted(p.name for p in folder.iterdir()), "env": dict(os.environ)}
    (HERE / "seen.json").write_text(json.dumps(seen))
    behaviour = "ok"

if behaviour == "silent":
    sys.exit(0)
if behaviour == "hang":
    output.write_bytes(b"GGUF")
    time.sleep(600)
sys.stderr.write((HERE / f"{behaviour}.txt").read_text(encoding="utf-8"))
if behaviour in ("ok", "noweights"):
    shutil.copy(HERE / ("ready.gguf" if behaviour == "ok" else "empty.gguf"), output)
    sys.exit(0)
if behaviour == "truncated":  # the real one leaves what it had written
    output.write_bytes(ready.read_bytes()[:-1000])
sys.exit(1)
