"""What is recounted, compared and controlled of live runs, at what cost, and with what result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cook.engines.base import DraftSettings, Engine, ModelArgs
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.heads import HeadKind
from cook.formats.sampling import Sampling
from cook.graph.step import Source, Workbench, source
from cook.prompts.prompt_set import Prompt
from cook.record.record import (
    CompareOutcome,
    ControlOutcome,
    Difference,
    PromptRun,
    RecountOutcome,
)
from cook.scoring.simulate import Profile
from cook.steps import checks
from cook.steps.checks import (
    CONTROLLED,
    MIN_REPLY_TOKENS,
    REPLIES,
    REQUESTS,
    CompareStep,
    ControlStep,
    LiveRequest,
    RecountStep,
    Seen,
    _changes_its_mind,
    _chosen,
    emitted_tokens,
    output_check,
    requests_of,
)
from cook.steps.deal import DealStep, Dealt
from cook.steps.live import WARM_UP_TOKENS, LiveOutcome
from cook.steps.trace import TraceStep
from cook.trace.chain import Draws
from tests.engines.tiny_heads import write_tiny_heads
from tests.workbench import live_step, run

END = 0
PIECES = {END: "", 1: "a", 2: "b", 3: "c", 4: "ab", 5: "\ufffd"}


class Letters:
    """A worker whose tokens are letters; ``ab`` is one token as well, but never tokenized to."""

    def tokenize(self, text: str, **_: Any) -> tuple[int, ...]:
        return tuple({"a": 1, "b": 2, "c": 3}.get(letter, 5) for letter in text)

    def detokenize(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(PIECES[int(token)] for token in tokens)


def live(text: str, predicted_n: int, stop: str = "limit") -> PromptRun:
    return PromptRun("p", "c", 3, 1.0, predicted_n, 9.0, 10.0, 8, 5, None, text, stop)


@dataclass(frozen=True)
class Recorded:
    tokens: Any
    prompt: tuple[int, ...] = ()


OWN = replace(live("abc", 3), tokens=(4, 3, 9))
CUT = (4, 3, 1, 2, 3, 1)


@pytest.mark.parametrize(
    ("run", "trace", "eog", "tokens"),
    [
        (OWN, (1, 2, 3), (END,), OWN.tokens),
        # A text that is cut within the last draft is the trace's,
        (live("abca", 6), CUT, (END,), CUT),
        (live("abcabca", 6), CUT, (END,), CUT),
        # but more is away than one draft can hide, or another text's tokens are hidden.
        (live("ab", 6), CUT, (END,), None),
        (live("abcac", 6), CUT, (END,), None),
        # What was counted past an end is in the trace.
        (live("ab", 5, "eos"), (4, END, 1, 2, 3, 1), (END,), (4, END, 1, 2, 3)),
        # A text of its own is tokenized where that leaves no doubt.
        (live("cab", 3), (1, 1, 1), (END,), (3, 1, 2)),
        (live("cab", 4), (1, 1, 1, 1), (END,), None),
        (live("cab", 4, "eos"), (1, 1, 1, 1), (END,), (3, 1, 2, END)),
        (live("cab", 5, "eos"), (1, 1, 1, 1, 1), (END, 9), None),
        (live("ab", 3), (4, END), (END,), None),
        (live("c?b", 3), (1, 1, 1), (END,), None),
    ],
)
def test_tokens_of_a_reply(
    run: PromptRun, trace: tuple[int, ...], eog: tuple[int, ...], tokens: tuple[int, ...] | None
) -> None:
    recorded: Any = Recorded(np.array(trace, np.int32))
    worker, info = cast(Worker, Letters()), cast(Any, SimpleNamespace(eog=frozenset(eog)))
    assert emitted_tokens(run, recorded, worker, info, n_max=3) == tokens


def test_passed() -> None:
    assert RecountOutcome(4, 4, 9, 5, 9, 5).passed
    assert not RecountOutcome(4, 3, 9, 5, 9, 5).passed
    assert not RecountOutcome(0, 0, 0, 0, 0, 0, passed_over=4).passed


def test_each_difference_is_classed() -> None:
    outcome = CompareOutcome(
        5,
        2,
        (
            Difference("a", 3, 12, 1, 2, 0.01, None, True),
            Difference("b", 9, 12, 1, 2, 2.5, None, False),
            Difference("c", 0, 12, 1, None, None, None),
        ),
    )
    check = output_check(outcome)
    assert (check.near_ties, check.material, check.unknown) == (1, 1, 1)
    assert (check.largest_gap, check.first_positions) == (2.5, (3, 9, 0))
    assert (check.without_draft, check.without_draft_tried) == (1, 2)
    assert not check.gap_is_measured


def test_a_control_run_draws_the_line_of_near_ties() -> None:
    outcome = CompareOutcome(1, 0, (Difference("a", 3, 12, 1, 2, 0.05, None),))
    check = output_check(outcome, ControlOutcome(5, 300, 1, 0.001, 0.02, 0.3, 0.01))
    assert (check.near_tie_gap, check.control.flips) == (0.04, 1)
    assert (check.near_ties, check.material) == (0, 1)


def test_a_server_is_followed_from_its_first_line_on() -> None:
    """Of a prompt that was dealt twice both are read, and the counts of one are known."""
    kept = {"a": 7, "b": 2, "lost": 8}
    runs = [replace(live("", 3), id=id, tokens=(1, 2, 3), order=n) for id, n in kept.items()]
    found = LiveOutcome(tuple(runs), 0.0, 0, (), None, warm_up=((5, 6), (7,)))
    asked = ((1, "a"), (2, "b"), (7, "a"), (8, "lost"), (9, "a"))
    texts = {id: Recorded(None, prompt=(4,)) for id in "ab"}
    seen = list(requests_of(replace(found, asked=asked), cast(Any, texts), 40))
    assert seen[0] == LiveRequest((5, 6), (7,), WARM_UP_TOKENS)
    assert [(r.prompt, r.tokens, r.n_predict) for r in seen[1:]] == [((4,), (1, 2, 3), 40)] * 3
    assert [r.run.order if r.run else None for r in seen[1:]] == [None, 2, 7]
    assert not list(requests_of(replace(found, warm_up=None), cast(Any, texts), 40))


@pytest.mark.engine
@pytest.mark.parametrize("head", ["head", "head-q8_0", "whole"])
def test_every_request_of_a_head_is_recounted(
    bundled: Engine, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every length and p_min, one server each; `whole` is the head inside of the target."""
    folder = write_tiny_heads(tmp_path)
    base = source([folder / ("whole.gguf" if head == "whole" else "trunk.gguf")])
    live = live_step(
        bundled,
        DraftSettings(1),
        target=base,
        draft=source([folder / f"{head}.gguf"]),
        head=HeadKind.MTP,
        prompts=tuple(Prompt(f"p{i}", "text", f"Say {i * i}, then {i}:", "pick") for i in range(9)),
        max_tokens=32,
    )
    settings = [DraftSettings(n, 0, p) for n in (1, 2, 4, 8) for p in (0.0, 0.5)]
    servers = tuple(replace(live, name=str(one), settings=one) for one in settings)
    deal = DealStep(servers, 0, together=False)
    placed = (bundled, base, live.target_args, live.context, live.prompts, live.max_tokens)
    trace = TraceStep(*placed, Sampling(), chat=False)
    assert live.draft is not None
    args = bundled.as_draft(live.draft_args, live.target_args, live.context)
    recounts = [
        RecountStep(
            *(bundled, server.name, live.draft, args, one, Profile.MAINLINE_2026_10, trace),
            live=Dealt((deal,), server.name),
        )
        for server, one in zip(servers, settings, strict=True)
    ]
    outcomes = run(tmp_path, trace, deal, *recounts, threads=1)
    assert not outcomes.failures
    for found in (outcomes.result(recount) for recount in recounts):
        assert found is not None
        assert (found.requests, found.exact) == (REQUESTS, REQUESTS)
        assert found.passed
        replayed = found.replay_accepted / found.replay_drafted
        assert replayed == pytest.approx(found.live_accepted / found.live_drafted, abs=0.02)

    # Where its prompts are long, one request.
    monkeypatch.setattr(checks, "HEAD_READ_TOKENS", 1)
    again = replace(recounts[0])
    brief = run(tmp_path, trace, deal, again, threads=1).result(again)
    assert (brief.requests, brief.exact) == (1, 1)


@pytest.mark.engine
@pytest.mark.parametrize("reply", [[9], [9, 8, 7, 6]], ids=("one token", "four"))
def test_rows_behind_a_prompt_that_was_read_are_those_of_one_reading(
    reply: list[int], bundled: Engine, tmp_path: Path, bench: Workbench
) -> None:
    """Also where nothing is behind it, in a reply of one token."""
    place = (bundled, write_tiny_heads(tmp_path) / "whole.gguf", ModelArgs(threads=1), 64)
    prompt = [5, 6, 7, 8, 9, 10]
    with bench.workers.loaded(bundled, model_load(*place, outputs=3, gives_rows=True)) as (on, _):
        on.load(head_load(*place, branches=4, depth=2), onto=True)
        _, known, _ = on.live_shapes_head(
            *(prompt, reply), settings=DraftSettings(2), n_predict=len(reply), server_context=64
        )
        again = on.rows(prompt, reply, known)
        assert np.array_equal(again, on.rows(prompt, reply))
    bench.workers.close()


FOUND = Difference("p", 3, 40, 7, 8, 0.02, None)
SAMPLER = Sampling(0.8, 40, 1.0, 0.0, 1.0)


@dataclass
class Asked:
    """A worker that says ``argmax`` at each width, and keeps what it was asked."""

    argmax: dict[int, int] = field(default_factory=dict)
    logits: dict[int, list[float]] = field(default_factory=dict)
    requests: list[tuple[int, int, int]] = field(default_factory=list)

    def replay(self, prompt: Any, emitted: Any, *, width: int, ahead: int = 0, top: int = 0) -> Any:
        self.requests.append((len(prompt), width, ahead))
        row = np.array(self.logits.get(width, [0.0, -1.0]))
        order = np.argsort(-row)
        return SimpleNamespace(
            argmax=np.array([self.argmax.get(width, 7)]),
            top_ids=order[None, :].astype(np.int32) if top else None,
            top_logits=row[order][None, :].astype(np.float32) if top else None,
        )


def seen(prompt: int = 22_000, **changes: Any) -> Seen:
    return Seen(replace(FOUND, **changes), tuple(range(prompt)), tuple(range(40)))


def test_a_control_reads_the_prompt_in_whole_batches() -> None:
    """22,000 tokens at the width of a verification were 76 minutes a difference."""
    worker = Asked()
    assert _changes_its_mind(cast(Worker, worker), seen(), (5, 3, 2), None) is False
    assert worker.requests == [(22_000, width, 22_000 - 64) for width in (5, 3, 2)]
    worker = Asked(argmax={3: 8})
    assert _changes_its_mind(cast(Worker, worker), seen(20), (5, 3, 2), None) is True
    assert worker.requests == [(20, 5, 1), (20, 3, 1)], "it ends where the question is decided"


def test_above_temperature_0_a_control_asks_for_the_same_draw() -> None:
    ids = np.arange(2, dtype=np.int32)
    here = Draws.of(SAMPLER, ids, np.log(np.array([0.6, 0.4], np.float32)))
    one = replace(seen(20, baseline_token=0, other_token=1), draws=here)
    less, more = np.log([0.59, 0.41]).tolist(), np.log([0.61, 0.39]).tolist()
    # The border moved down: draws just below it gave 0, and give 1. Both argmaxes are 0.
    assert _changes_its_mind(cast(Worker, Asked(logits={5: less})), one, (5,), SAMPLER)
    assert not _changes_its_mind(cast(Worker, Asked(logits={5: more})), one, (5,), SAMPLER)


STEP = cast(
    CompareStep,
    SimpleNamespace(
        live=SimpleNamespace(
            live=SimpleNamespace(settings=SimpleNamespace(n_max=4), sampling=Sampling())
        ),
        _chain=lambda: None,
    ),
)


def test_a_few_of_each_kind_are_controlled() -> None:
    near, wide, unknown = (
        [seen(prompt_id=f"{kind} {i}", gap=gap) for i in range(count)]
        for kind, gap, count in (("near", 0.02, 9), ("wide", 2.0, 9), ("unknown", None, 2))
    )
    every = [seen(prompt_id="one ended", other_token=None), *near, *wide, *unknown]
    found = list(CompareStep._controlled(STEP, cast(Worker, Asked()), every))
    assert [d.prompt_id for d in found] == [one.difference.prompt_id for one in every]
    chosen = [*near[:CONTROLLED], *wide[:CONTROLLED], *unknown]
    controlled = [d.prompt_id for d in found if d.without_draft is not None]
    assert controlled == [one.difference.prompt_id for one in chosen]


def test_a_control_comes_right_after_its_look_up() -> None:
    """The worker still holds the text then, and need not read it again."""
    worker, order = Asked(), list[str]()

    def looked_up() -> Iterator[Seen]:
        for name in ("a", "b"):
            order.append(name)
            yield seen(prompt_id=name)

    for found in CompareStep._controlled(STEP, cast(Worker, worker), looked_up()):
        order.append(f"{found.prompt_id}: {len(worker.requests)}")
    assert order == ["a", "a: 3", "b", "b: 6"]


def test_what_no_worker_can_control_a_server_looks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control that takes too long is reported, and fails nothing; so is a missing worker."""

    def loaded(*_: object) -> Any:
        raise StepError("worker: replay: no answer within 900 s\n log")

    class Serving:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Serving:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(checks, "model_load", lambda *_: None)
    monkeypatch.setattr(checks, "Server", Serving)
    step = cast(
        CompareStep,
        SimpleNamespace(
            target=Source(Path("t"), "sha256:0", 1),
            target_args=None,
            context=4096,
            engine=None,
            baseline=SimpleNamespace(
                prompts={"a": Prompt("a", "c", "text", "pick")}, live=SimpleNamespace(chat=False)
            ),
            _seen=lambda target, *_: [seen(prompt_id=type(target).__name__)],
        ),
    )
    kept = SimpleNamespace(close=lambda: None, loaded=loaded)
    bench: Any = SimpleNamespace(supervisor=None, workers=kept)
    pair: Any = SimpleNamespace(id="a")
    found, uncontrolled = CompareStep._found(step, bench, [(pair, pair)])
    assert uncontrolled == "worker: replay: no answer within 900 s"
    assert [(d.prompt_id, d.without_draft) for d in found] == [("Serving", None)]


def chosen(*sizes: tuple[int, int]) -> list[int]:
    heads = [SimpleNamespace(id=i, prompt_tokens=p, emitted=e) for i, (p, e) in enumerate(sizes)]
    trace: Any = SimpleNamespace(heads=heads)
    return cast(list[int], _chosen(trace))


def test_the_shortest_prompts_until_there_is_enough() -> None:
    """Twelve prompts of 22,000 tokens were read where three replies show as much."""
    half = MIN_REPLY_TOKENS // 2
    assert chosen((9_000, half), (22_000, half), (50, half), (300, half)) == [2, 3]
    assert chosen(*((100 + i, 10) for i in range(40))) == list(range(REPLIES))
    assert chosen((22_000, 4 * MIN_REPLY_TOKENS)) == [0]
    assert ControlStep.optional, "one that fails is reported where its result would be"


@pytest.mark.engine
def test_wide_batches_are_compared_with_single_tokens_whatever_the_trace_is(
    bundled: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    """Of a trace in wide batches the line of near ties was 0, and every other text a larger gap."""
    target, args = source([tiny_model]), ModelArgs(threads=1)
    prompts = tuple(Prompt(f"p{i}", "code", f"def area_{i}(width):", "pick") for i in range(3))
    single = TraceStep(bundled, target, args, 512, prompts, 40, Sampling(), chat=False)
    steps = [
        ControlStep(bundled, target, args, trace, 5)
        for trace in (single, replace(single, batch_width=2))
    ]
    outcomes = run(tmp_path, *steps, threads=1)
    assert not outcomes.failures
    of_single, of_wide = (outcomes.result(step) for step in steps)
    assert (of_wide.width, of_wide.positions) == (of_single.width, of_single.positions) == (5, 120)
    assert of_single.p50 > 0
    assert of_wide.p50 == pytest.approx(of_single.p50, rel=0.2)
    assert of_wide.near_tie_gap == pytest.approx(of_single.near_tie_gap, rel=0.2)
