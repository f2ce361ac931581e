"""Records of the demo pair, as small as serving needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.engines.base import DraftSettings, EngineIdentity, ModelArgs
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir
from cook.record.record import Candidate, Record, Serving
from tests import bare_records as bare

TARGET, DRAFT = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
PICKED, ALONE = "draft-f16 n_max=4", "no draft"


def candidate(
    name: str, engine: str, draft: str | None, settings: DraftSettings | None
) -> Candidate:
    one = ModelArgs(threads=1)
    return replace(
        bare.CANDIDATE,
        name=name,
        engine=engine,
        draft=draft,
        settings=settings,
        reason="not run",
        command=("an", "old", "command"),
        serving=Serving(512, one, one if draft else ModelArgs()),
    )


def record(
    engine: str, target: Path = TARGET, draft: Path = DRAFT, picked: str | None = PICKED
) -> Record:
    size = draft.stat().st_size
    return replace(
        bare.RECORD,
        command=("cook", "build"),
        engines={engine: EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "another digest")},
        demo=True,
        target=str(target),
        target_bytes=target.stat().st_size,
        drafts=(
            replace(bare.DRAFT, quant="draft-f16", engine=engine, path=str(draft), file_bytes=size),
        ),
        candidates=(
            candidate(ALONE, engine, None, None),
            candidate(PICKED, engine, "draft-f16", DraftSettings(4, 0, 0.0)),
        ),
        pick=replace(bare.RECORD.pick, candidate=picked),
    )
