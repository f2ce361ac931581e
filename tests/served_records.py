"""Records of the demo pair, as small as serving needs them."""

from __future__ import annotations

from pathlib import Path

from cook.engines.base import DraftSettings, EngineIdentity, Flavour, ModelArgs
from cook.paths import demo_dir
from cook.provenance import machine
from cook.report.record import Candidate, Draft, Pick, Record, Serving

TARGET, DRAFT = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
PICKED, ALONE = "draft-f16 n_max=4", "no draft"


def candidate(
    name: str, engine: str, draft: str | None, settings: DraftSettings | None
) -> Candidate:
    one = ModelArgs(threads=1)
    return Candidate(
        name=name,
        engine=engine,
        draft=draft,
        settings=settings,
        cache_type=None,
        live=None,
        reason="not run",
        categories={},
        speedup=None,
        speedup_interval=None,
        decode_speedup=None,
        output=None,
        server_peak_rss_bytes=None,
        command=("an", "old", "command"),
        serving=Serving(512, one, one if draft else ModelArgs()),
    )


def record(
    engine: str, target: Path = TARGET, draft: Path = DRAFT, picked: str | None = PICKED
) -> Record:
    return Record(
        schema_version=1,
        cook="0",
        created="2026-01-01T00:00:00Z",
        command=("cook", "build"),
        machine=machine(),
        engines={engine: EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "another digest")},
        recipe="r",
        recipe_sha256="",
        recipe_text="",
        demo=True,
        target=str(target),
        target_bytes=target.stat().st_size,
        prompts="demo",
        prompts_sha256="",
        max_tokens=16,
        temperature=0.0,
        source_quality=None,
        drafts=(
            Draft(
                "draft-f16",
                engine,
                str(draft),
                "k",
                draft.stat().st_size,
                None,
                None,
                None,
                "not asked for",
                None,
                "not asked for",
                {},
            ),
        ),
        candidates=(
            candidate(ALONE, engine, None, None),
            candidate(PICKED, engine, "draft-f16", DraftSettings(4, 0, 0.0)),
        ),
        left_out=(),
        pick=Pick(picked, "nothing qualifies: x", "decode_speed", 0.95, None, (), (), ()),
        warnings=(),
        steps=(),
    )
