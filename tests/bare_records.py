"""The least that a record and its parts hold, for ``dataclasses.replace`` to fill in."""

from __future__ import annotations

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.provenance import machine
from cook.record.record import Candidate, Draft, Pick, Record

CANDIDATE = Candidate(
    name="no draft",
    engine="bundled",
    draft=None,
    settings=None,
    cache_type=None,
    live=None,
    reason=None,
    categories={},
    speedup=None,
    speedup_interval=None,
    decode_speedup=None,
    output=None,
    server_peak_rss_bytes=None,
    command=(),
)
DRAFT = Draft(
    quant="Q4",
    engine="bundled",
    path=None,
    key="k",
    file_bytes=None,
    tensor_bytes=None,
    bpw=None,
    quality=None,
    quality_reason="not asked for",
    memory_bytes=None,
    memory_reason="not asked for",
    type_counts={},
)
RECORD = Record(
    schema_version=1,
    cook="0",
    created="2026-01-01T00:00:00Z",
    command=(),
    machine=machine(),
    engines={"bundled": EngineIdentity(Flavour.LLAMA_CPP, "b1", None, "d" * 64)},
    recipe="r",
    recipe_sha256="",
    recipe_text="",
    demo=False,
    target="t.gguf",
    target_bytes=1,
    prompts="demo",
    prompts_sha256="",
    max_tokens=16,
    temperature=0.0,
    source_quality=None,
    drafts=(),
    candidates=(),
    left_out=(),
    pick=Pick(None, "nothing qualifies: x", "decode_speed", 0.95, 0.01, None, (), ()),
    warnings=(),
    steps=(),
)
