"""What else a replay says: other sampling chains, rejection sampling, n-grams before a draft."""

from __future__ import annotations

from pathlib import Path

from cook.engines.speculation import NgramSettings, NgramType
from cook.formats.quant_types import Flavour
from cook.job.layout import Rival
from cook.job.what_if import chain_forecast, forecasts_after, parallel_speeds, rejection
from tests.job.fabricated import World
from tests.job.test_forecast import ALL, PICK, forecaster


def test_rejection_sampling_of_a_sampled_trace_only(tmp_path: Path) -> None:
    greedy, _ = forecaster(tmp_path / "greedy")
    assert not rejection(greedy, ALL)
    sampled, _ = forecaster(
        tmp_path / "sampled",
        World(temperature=0.8, failing=("draft times large",)),
        sampling={"temperature": 0.8},
        draft={"n_max": [2, 4], "n_min": [0, 1], "p_min": [0.0, 0.5]},
    )
    found = rejection(sampled, ALL)
    assert len(found) == 2, "of what was timed, the settings without n_min and p_min"
    for one in found.values():
        assert one.decode_speed is not None
        assert 0 < one.accepted < one.drafted


def test_every_chain_has_its_own_text_and_the_same_times(tmp_path: Path) -> None:
    found, made = forecaster(tmp_path, sampling={"temperature": [0.0, 0.8], "top_p": [1.0, 0.9]})
    chains = found.plan.chains
    assert [c.sampling.chain for c in chains] == [
        "temperature 0.8, top_p 1",
        "temperature 0.8, top_p 0.9",
    ], "greedy is one chain whatever its top_p"
    assert len({found.plan.trace.key, *(c.key for c in chains)}) == 3
    assert len([label for label in made.asked if label.startswith("trace")]) == 3
    for chain in chains:
        forecast = chain_forecast(found, chain, PICK, None)
        assert (forecast.sampling, forecast.reason) == (chain.sampling, None)
        bare, *drafts = forecast.candidates
        assert bare.key.draft is None
        assert [one.key.draft for one in drafts] == ["small", "large"], "each at its best"
        assert all(one.rejection is not None for one in drafts)
        assert list(bare.prompts.ids) == PICK
    plan = found.plan.on(chains[0])
    assert [d.curve for d in plan.drafts] == [d.curve for d in found.plan.drafts]
    assert not plan.chains


def test_under_another_chain_only_what_was_replayed_there_is_forecast(tmp_path: Path) -> None:
    world = World(failing=("replay small",))
    found, _ = forecaster(tmp_path, world, sampling={"temperature": [0.0, 0.8]})
    (chain,) = found.plan.chains
    there = chain_forecast(found, chain, PICK, None)
    assert [one.key.draft for one in there.candidates] == [None, "large"]
    nothing, _ = forecaster(
        tmp_path / "nothing", World(failing=("replay",)), sampling={"temperature": [0.0, 0.8]}
    )
    assert chain_forecast(nothing, chain, PICK, None).reason == "nothing could be replayed"


def test_n_grams_before_a_draft_and_drafting_meanwhile(tmp_path: Path) -> None:
    found, _ = forecaster(tmp_path)
    assert found.plan.chains == (), "one sampling chain asks for no other text"
    draft = found.plan.drafts[0]
    settings = NgramSettings(NgramType.SIMPLE, size_n=1, size_m=1).of(Flavour.LLAMA_CPP)
    rival = Rival("ngram-simple", settings)
    behind = {f.key.settings: f for f in forecasts_after(found, draft, rival)}
    alone = {f.key.settings: f for f in found.forecasts(ALL) if f.key.draft == "small"}
    assert behind.keys() == alone.keys()
    for asked, one in behind.items():
        assert one.key.ngram == settings
        assert one.name == f"ngram-simple, then {alone[asked].name}"
        assert one.spent.draft_s < alone[asked].spent.draft_s
    parallel = parallel_speeds(found, draft, [4])
    assert len(parallel) == 2
    usual = next(one for one in alone.values() if one.name == "small n_max=4")
    fastest = max(s.decode_tokens_per_s for s in parallel)
    assert fastest > (usual.figures.decode_speed or 0), "than drafting between verifications"
    failed, _ = forecaster(tmp_path / "failed", World(failing=("draft times small",)))
    assert forecasts_after(failed, failed.plan.drafts[0], rival) == []
    assert parallel_speeds(failed, failed.plan.drafts[0], [4]) == ()
