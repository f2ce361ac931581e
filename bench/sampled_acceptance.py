"""Acceptance at a temperature: forecast from a trace of that chain, against real servers.

The target writes every reply under a chain with random numbers of cook's own, the draft is
replayed on that, and the counts are compared with those of servers that sampled by themselves: two
samples of one distribution, so they may differ by what two samples do, and by no more. Beside it
what a greedy trace's stored probabilities say of the same chain. Not a timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.study import Study, engines
from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import Generation, Replay
from cook.engines.worker.worker import Worker
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts
from cook.scoring.chains import under
from cook.scoring.sampled import expected_run
from cook.scoring.simulate import PROFILES, positions_of, simulate
from cook.scoring.totals import Share, standard_error
from cook.trace.session import TOP

PROMPTS, TOKENS, CONTEXT, N_MAX = 60, 128, 2048, 4
CHAINS = (
    Sampling(0.3, seed=11),
    Sampling(0.6, seed=12),
    Sampling(0.6, top_p=0.8, seed=13),
    Sampling(1.0, seed=14),
    Sampling(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=15),
)
"""Each with random numbers of its own, so that chance does not favour all alike."""
MOST_ERRORS = 3.0
"""Standard errors of the difference of two samples that pass: five chains on two engines."""


@dataclass(frozen=True)
class SampledAgreement:
    """Acceptance under one chain: ``forecast`` and ``live`` with standard errors by prompts;
    ``elsewhere``: what stored probabilities of a greedy text say."""

    engine: str
    sampling: Sampling
    forecast: float
    forecast_error: float
    live: float
    live_error: float
    elsewhere: float

    @property
    def errors(self) -> float:
        """The difference in standard errors."""
        return abs(self.forecast - self.live) / float(
            (self.forecast_error**2 + self.live_error**2) ** 0.5
        )

    def __str__(self) -> str:
        return (
            f"  {self.engine:8} {self.sampling.chain}: forecast {self.forecast:.1%} ± "
            f"{self.forecast_error:.1%}, server {self.live:.1%} ± {self.live_error:.1%} "
            f"({self.errors:.1f} errors apart); from a greedy text {self.elsewhere:.1%}"
        )


def sampled_acceptance() -> Study:
    """Every chain on the bundled engine, and on ik where COOK_ENGINE_IK names a build."""
    found = []
    with TemporaryDirectory(prefix="cook-bench-") as logs:
        supervisor = Supervisor(Path(logs))
        for engine in engines():
            found += agreements(engine, CHAINS, PROMPTS, TOKENS, supervisor)
    head = f"acceptance at n_max={N_MAX} by chain, {PROMPTS} prompts x {TOKENS} tokens"
    return Study((head, *map(str, found)), all(a.errors <= MOST_ERRORS for a in found))


def agreements(
    engine: Engine, chains: Sequence[Sampling], prompts: int, tokens: int, supervisor: Supervisor
) -> list[SampledAgreement]:
    """The demo's pair under every one of ``chains``."""
    target, draft = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
    args = ModelArgs(threads=1)
    texts = load_prompts("demo").prompts[:prompts]
    profile = PROFILES[Flavour(engine.flavour)]
    with Worker.open(engine, supervisor) as worker:
        info = worker.load(model_load(engine, target, args, CONTEXT, beyond=64))
        asked = [worker.tokenize(p.text) for p in texts]
        written = [
            [
                worker.generate(
                    ids,
                    n_predict=tokens,
                    extra=32,
                    top=TOP,
                    chain=chain.for_prompt(str(at)).applied(),
                )
                for at, ids in enumerate(asked)
            ]
            for chain in (Sampling(), *chains)
        ]
        worker.load(model_load(engine, draft, args, CONTEXT))
        replays = [
            [worker.replay(ids, said.tokens) for ids, said in zip(asked, replies, strict=True)]
            for replies in written
        ]
    found = []
    job = ServerJob(target, args, CONTEXT, draft, args, DraftSettings(N_MAX))
    with Server(engine, job, supervisor) as server:
        for chain, replies, seen in zip(chains, written[1:], replays[1:], strict=True):
            ours = []
            for ids, said, replay in zip(asked, replies, seen, strict=True):
                text = positions_of(
                    replay,
                    said.tokens,
                    prompt=len(ids),
                    reply=said.emitted,
                    eog=info.eog,
                    n_predict=tokens,
                    context=CONTEXT,
                )
                run = simulate(text, DraftSettings(N_MAX), profile)
                ours.append(Share(run.draft_n_accepted, run.draft_n, "all"))
            theirs = []
            for at, ids in enumerate(asked):
                request = chain.for_prompt(f"live {at}").applied("server")
                answer = server.complete(ids, tokens, sampling=request.whole_request())
                theirs.append(Share(answer.draft_n_accepted or 0, answer.draft_n or 0, "all"))
            elsewhere = [
                _expected(chain, said, replay, info.n_vocab, tokens)
                for said, replay in zip(written[0], replays[0], strict=True)
            ]
            found.append(
                SampledAgreement(
                    engine.name,
                    chain,
                    _rate(ours),
                    standard_error(ours),
                    _rate(theirs),
                    standard_error(theirs),
                    _rate(elsewhere),
                )
            )
    return found


def _expected(
    chain: Sampling, said: Generation, replay: Replay, vocabulary_size: int, tokens: int
) -> Share:
    """What the stored probabilities of ``said`` say of ``chain``; the lower bound."""
    assert said.top_ids is not None, "asked for"
    assert said.top_logits is not None, "asked for"
    logp = said.top_logits - said.logsumexp[:, None]
    chances = under(chain.applied(), said.top_ids, logp, vocabulary_size).of(replay.argmax)
    run = expected_run(chances.low[: said.emitted], N_MAX, tokens)
    return Share(run.draft_n_accepted, run.draft_n, "all")


def _rate(shares: Sequence[Share]) -> float:
    return sum(s.numerator for s in shares) / sum(s.denominator for s in shares)
