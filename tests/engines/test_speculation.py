"""Hidden speculation: a server is what it was asked for, by its own words, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.facts import parse_defaults
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.server_api import Completion
from cook.engines.speculation import (
    DEFAULTS,
    NgramSettings,
    NgramType,
    read_speculators,
    speculators_in_help,
    speculators_of,
    unwanted,
)
from cook.errors import InputError, StepError
from cook.formats.quant_types import Flavour
from tests.conftest import STANDINS

Make = Callable[..., Any]
ML, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP
RECORDED = STANDINS / "recorded"
ONE = ModelArgs(threads=1)
TEXT = "one two three four one two three four one two three four one two three"


def job(target: Path, draft: Path | None = None, ngram: NgramSettings | None = None) -> ServerJob:
    return ServerJob(target, ONE, 512, draft, ONE, DraftSettings(4) if draft else None, ngram)


@pytest.fixture
def asked(supervisor: Supervisor, tiny_model: Path) -> Make:
    """``asked(engine, draft)``: the answer to a request that repeats itself, on a server of its
    own, and the log of that."""

    def ask(engine: Any, draft: Path | None) -> tuple[Completion, dict[str, str]]:
        with Server(engine, job(tiny_model, draft), supervisor) as server:
            answer, log = server.complete(TEXT, 96, ignore_eos=True), server.log
        return answer, read_speculators(log.read_text(errors="replace").splitlines())

    return ask


def offering(engine: Any, flag: str = "--no-spec-type") -> Any:
    """``engine`` as if the help of its server offered ``flag``."""
    flags = engine.facts.flags
    more = {**flags, "server": (*flags["server"], flag)}
    return type(engine)(engine.name, dataclasses.replace(engine.facts, flags=more))


def test_what_the_help_of_both_engines_says() -> None:
    """The kinds of speculation, and the defaults."""
    texts = [(RECORDED / flavour / "server.txt").read_text() for flavour in (ML, IK)]
    ml, ik = map(speculators_in_help, texts)
    assert ml[:2] == ("draft-simple", "draft-eagle3")
    assert "ngram-mod" in ml
    assert "none" not in ml
    assert (ik[0], ik[-1]) == ("draft", "suffix")
    assert speculators_in_help("--spec-draft-n-max N  tokens (default: 3)") == ()
    defaults = [parse_defaults(text) for text in texts]
    wanted = {"--spec-draft-p-min": "0.00", "--spec-draft-n-max": "3", "--spec-type": "none"}
    wanted |= {"--spec-ngram-mod-n-min": "48", "--cache-type-k-draft": "f16"}
    assert defaults[0] | wanted == defaults[0]
    for found in defaults:
        assert (found["--batch-size"], found["--ubatch-size"]) == ("2048", "512")
        assert found["--cache-type-k"] == "f16"
        assert not any("/" in value or " " in value for value in found.values())


def test_kinds_that_an_answer_names() -> None:
    assert speculators_of("none") == ()
    assert speculators_of("ngram-mod,draft-simple") == ("ngram-mod", "draft-simple")
    assert speculators_of(None) == speculators_of(["ngram-mod"]) == speculators_of("a b") == ()


def test_counters_of_every_kind_in_a_log() -> None:
    line = (
        "spec  print_stats: statistics {:>16}: #calls(b,g,a) = {} 9 7, #gen drafts = 7,"
        " #acc drafts = 5, #gen tokens = {}, #acc tokens = 11"
    )
    log = [
        "spec: adding speculative implementation 'draft-simple'",
        "spec: adding speculative implementation 'ngram-cache'",
        line.format("ngram-mod", 1, 20),
        line.format("ngram-mod", 2, 40),
    ]
    assert read_speculators(log) == {
        "draft-simple": "draft-simple",
        "ngram-cache": "ngram-cache",
        "ngram-mod": "ngram-mod (11 of 40 tokens accepted)",
    }
    assert list(read_speculators([line.format("ngram_simple", 1, 20)])) == ["ngram-simple"]
    assert read_speculators(["a reply about speculation"]) == {}
    (unnamed,) = read_speculators(["slot 0 | speculative decoding context initialized"])
    assert "unnamed" in unnamed


def test_only_the_draft_is_wanted_and_nothing_without_one() -> None:
    assert unwanted(["draft", "ngram-mod"], ["draft"]) == ("ngram-mod",)
    assert unwanted(["draft"], ["draft"]) == ()
    assert unwanted(["draft"], []) == ("draft",)


def test_a_build_that_speculates_by_default_gets_a_flag_against_it(
    standin_engine: Make, tiny_model: Path, tiny_draft: Path
) -> None:
    engine = standin_engine()
    bare, drafting = (
        offering(engine).server_command(job(tiny_model, draft), 8080, None)
        for draft in (None, tiny_draft)
    )
    taken = bare[bare.index("--no-spec-type") + 1].split(",")
    assert {"ngram-mod", "ngram-cache", "draft-simple", "draft-mtp"} <= set(taken)
    at = drafting.index("--no-spec-type")
    assert set(taken) - set(drafting[at + 1].split(",")) == {"draft-simple"}
    assert at < drafting.index("--spec-type")
    assert "--no-spec-type" not in engine.server_command(job(tiny_model), 8080, None)


@pytest.mark.engine
def test_the_bundled_engine_is_a_clean_baseline(
    bundled: Any, asked: Make, tiny_draft: Path
) -> None:
    plain, _ = asked(bundled, None)
    assert (plain.speculators, plain.draft_n) == ((), None)
    drafted, kinds = asked(bundled, tiny_draft)
    assert drafted.speculators == ("draft-simple",)
    accepted = f"{drafted.draft_n_accepted} of {drafted.draft_n} tokens accepted"
    assert list(kinds.values()) == [f"draft-simple ({accepted})"]


@pytest.mark.ik
def test_ik_is_a_clean_baseline(ik_engine: Any, asked: Make, tiny_draft: Path) -> None:
    assert asked(ik_engine, None)[0].draft_n is None
    drafted, kinds = asked(ik_engine, tiny_draft)
    assert list(kinds) == ["draft"]
    assert drafted.draft_n is not None


@pytest.fixture(params=["no draft", "a draft"])
def draft(request: pytest.FixtureRequest, tiny_draft: Path) -> Path | None:
    """What a server may speculate with, and nothing else."""
    return tiny_draft if request.param == "a draft" else None


@pytest.mark.engine
def test_hidden_speculation_is_never_counted(
    bundled: Any, standin_engine: Make, asked: Make, draft: Path | None
) -> None:
    engine = standin_engine("speculates", "server", real=bundled.facts.bin_dir)
    message = "in addition to draft-simple" if draft is not None else "although given no draft"
    with pytest.raises(StepError, match=f"speculates {message}") as caught:
        asked(engine, draft)
    assert "--no-spec-type" in str(caught.value.hint)


@pytest.mark.ik
def test_hidden_speculation_of_ik_is_never_counted(
    ik_engine: Any, standin_engine: Make, asked: Make, draft: Path | None
) -> None:
    engine = standin_engine("speculates_on_ik", "server", flavour=IK, real=ik_engine.facts.bin_dir)
    with pytest.raises(StepError, match="speculates"):
        asked(engine, draft)


@pytest.mark.engine
def test_hidden_speculation_is_switched_off_where_that_can_be_said(
    bundled: Any, standin_engine: Make, asked: Make, draft: Path | None
) -> None:
    engine = standin_engine("speculates_unless_told", "server", real=bundled.facts.bin_dir)
    (answer, _), (real, _) = asked(offering(engine), draft), asked(bundled, draft)
    assert answer.tokens == real.tokens
    assert (answer.draft_n, answer.draft_n_accepted) == (real.draft_n, real.draft_n_accepted)
    with pytest.raises(StepError, match=r"ngram-mod|/slots"):
        asked(engine, draft)


def test_what_is_not_said_is_the_engines_own() -> None:
    said = NgramSettings(NgramType.MAP_K, size_n=8)
    assert str(said) == "ngram-map-k size_n=8"
    assert said.of(ML) == NgramSettings(NgramType.MAP_K, size_n=8, size_m=48)
    assert said.of(IK).longest == 16
    assert said.of(ML).longest == 48
    assert NgramSettings(NgramType.CACHE).of(IK).longest == 8
    assert all(one.of(flavour) == one for flavour in DEFAULTS for one in DEFAULTS[flavour].values())


@pytest.mark.parametrize(
    ("flavour", "settings", "message"),
    [
        (ML, NgramSettings(NgramType.SUFFIX), "has no suffix"),
        (ML, NgramSettings(NgramType.MAP_K, min_hits=2), "does not use min_hits"),
        (ML, NgramSettings(NgramType.CACHE, n_max=4), "does not use n_max"),
        (IK, NgramSettings(NgramType.MOD, n_min=20), "n_min 20 is above its longest draft, 16"),
    ],
)
def test_what_would_do_nothing_is_refused(
    flavour: Flavour, settings: NgramSettings, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        settings.of(flavour)


def test_mainline_gets_every_number(standin_engine: Make, tmp_path: Path) -> None:
    engine = standin_engine(flavour=ML)
    key = NgramSettings(NgramType.MAP_K4V, size_n=8)
    found = " ".join(engine.server_command(job(tmp_path, ngram=key), 1, None))
    assert "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8" in found
    assert "--spec-ngram-map-k4v-size-m 48 --spec-ngram-map-k4v-min-hits 1" in found
    mod = job(tmp_path, tmp_path / "d", NgramSettings(NgramType.MOD))
    both = " ".join(engine.server_command(mod, 1, None))
    assert "--spec-type ngram-mod,draft-simple" in both
    assert "--spec-ngram-mod-n-match 24" in both


def test_ik_gets_a_stage(standin_engine: Make, tmp_path: Path) -> None:
    suffix = job(tmp_path, tmp_path / "d", NgramSettings(NgramType.SUFFIX, depth=16))
    words = standin_engine(flavour=IK).server_command(suffix, 1, None)
    stages = [words[i + 1] for i, word in enumerate(words) if word == "--spec-type"]
    assert stages == [
        "suffix:n_max=16,n_min=0,p_min=0.75,suffix_min_match_len=5,suffix_max_depth=16",
        "draft:n_max=4,n_min=0,p_min=0",
    ]
