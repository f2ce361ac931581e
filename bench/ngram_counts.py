"""Draft-free methods: the simulated counts against those of real servers, request by request.

One server a method answers all prompts in order, so that what it keeps from one request to the
next counts, too. Mainline tells the tokens that it wrote; ik does not, so that its replies are
written by its own library first, and the lines say where a server wrote another text.
Not a timing: other programs may run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.study import Study, engines
from cook.demo.unpack import SHIPPED_HEAD, unpack
from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.speculation import DEFAULTS, NgramSettings, NgramType
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.worker import Worker
from cook.formats.arrays import Ids
from cook.formats.gguf import read_gguf
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts
from cook.scoring.ngram import NgramRequest, NgramServer
from cook.scoring.simulate import positions_of

PROMPTS, TOKENS, CONTEXT = 55, 160, 4096
EAGER = (
    NgramSettings(NgramType.SIMPLE, size_n=3, size_m=8),
    NgramSettings(NgramType.MAP_K, size_n=3, size_m=8),
    NgramSettings(NgramType.MAP_K4V, size_n=2, size_m=3),
    NgramSettings(NgramType.MAP_K4V, size_n=3, size_m=6, min_hits=2),
    NgramSettings(NgramType.MOD, size_n=5, n_min=2, n_max=12),
)
"""Beside the engines' own numbers, which draft little on short replies."""
EAGER_IK = (
    NgramSettings(NgramType.CACHE, n_max=4, n_min=2),
    NgramSettings(NgramType.SUFFIX, n_max=8, n_min=2, p_min=0.05, min_match=2, depth=16),
)


@dataclass(frozen=True)
class NgramAgreement:
    """Counts over the same requests, (drafted, accepted) of each side.

    ``exact`` of ``requests`` have both counts equal; ``apart`` wrote another text than the
    library, where only that tells the tokens.
    """

    engine: str
    settings: str
    requests: int
    exact: int
    apart: int
    live: tuple[int, int]
    simulated: tuple[int, int]

    @property
    def off_by(self) -> float:
        """How far the simulated sums are off the server's, the worse of the two."""
        pairs = zip(self.simulated, self.live, strict=True)
        return max(abs(ours / max(theirs, 1) - 1) for ours, theirs in pairs)

    def __str__(self) -> str:
        live, ours = ("/".join(map(str, reversed(both))) for both in (self.live, self.simulated))
        apart = f", {self.apart} wrote another text" if self.apart else ""
        return (
            f"  {self.engine:8} {self.settings}: server {live}, simulated {ours}; "
            f"{self.exact} of {self.requests} requests equal{apart}"
        )


@dataclass(frozen=True)
class Written:
    """A reply of the target as the engine's library writes it, one token a step."""

    prompt: tuple[int, ...]
    tokens: Ids
    reply: int
    text: str


TARGET, DRAFT = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
N_MAX = 4
NEAR_TIES = 0.9
"""Share of requests with equal counts, where a draft model drafts in other batch shapes than it is
replayed in, so that a near tie falls otherwise now and then; in all, a hundredth at most."""


def two_stage_counts() -> Study:
    """An n-gram method first and the demo's draft second, counted as :func:`ngram_counts` does."""
    then = DraftSettings(N_MAX)
    found = _agreements(two_stage_methods, then)
    with TemporaryDirectory(prefix="cook-bench-") as folder:
        whole = Path(folder) / "whole.gguf"
        unpack(read_gguf(TARGET), whole, read_gguf(demo_dir() / SHIPPED_HEAD), layers_in_front=0)
        heads = _agreements(two_stage_methods, then, whole)
    head = f"n-grams first, a draft second, {PROMPTS} prompts x {TOKENS} tokens"
    within = all(a.exact >= NEAR_TIES * a.requests and a.off_by <= 0.01 for a in found)
    within &= all(a.exact == a.requests for a in heads)
    exact = "the head second, at the server's own batch shapes: every count equal"
    return Study((head, *map(str, found), exact, *map(str, heads)), within)


def ngram_counts() -> Study:
    """All methods that the bundled engine has, and ik's where COOK_ENGINE_IK names a build."""
    found = _agreements(methods)
    head = f"draft-free methods, {PROMPTS} prompts x {TOKENS} tokens: every count equal"
    return Study((head, *map(str, found)), all(a.exact == a.requests for a in found))


def _agreements(
    methods_of: Callable[[Engine], list[NgramSettings]],
    then: DraftSettings | None = None,
    whole: Path | None = None,
) -> list[NgramAgreement]:
    found = []
    texts = [p.text for p in load_prompts("demo").prompts[:PROMPTS]]
    with TemporaryDirectory(prefix="cook-bench-") as logs:
        supervisor = Supervisor(Path(logs))
        for engine in engines()[: 1 if whole else None]:
            written = replies(engine, texts, TOKENS, supervisor)
            found += [
                agreement(engine, settings, written, TOKENS, supervisor, then, whole)
                for settings in methods_of(engine)
            ]
    return found


def two_stage_methods(engine: Engine) -> list[NgramSettings]:
    """Methods of ``engine`` that draft before the draft model does."""
    flavour = Flavour(engine.flavour)
    own = EAGER_IK if flavour is Flavour.IK_LLAMA_CPP else (NgramSettings(NgramType.CACHE),)
    return [one.of(flavour) for one in (EAGER[0], EAGER[1], EAGER[4], *own)]


def methods(engine: Engine) -> list[NgramSettings]:
    """Every method of ``engine`` with its own numbers, and with some that draft more."""
    flavour = Flavour(engine.flavour)
    eager = EAGER if flavour is Flavour.LLAMA_CPP else (*EAGER, *EAGER_IK)
    return [one.of(flavour) for one in (*DEFAULTS[flavour].values(), *eager)]


def replies(
    engine: Engine, texts: Sequence[str], tokens: int, supervisor: Supervisor
) -> list[Written]:
    """Each text continued greedily, and somewhat beyond an end of the reply."""
    found = []
    with Worker.open(engine, supervisor) as worker:
        info = worker.load(model_load(engine, TARGET, ModelArgs(threads=1), CONTEXT, beyond=64))
        for text in texts:
            prompt = worker.tokenize(text)
            said = worker.generate(prompt, n_predict=tokens, extra=32)
            kept = [t for t in said.tokens[: said.emitted].tolist() if t not in info.eog]
            found.append(
                Written(prompt, said.tokens, said.emitted, worker.detokenize(kept, special=False))
            )
    return found


def agreement(
    engine: Engine,
    settings: NgramSettings,
    written: Sequence[Written],
    tokens: int,
    supervisor: Supervisor,
    then: DraftSettings | None = None,
    whole: Path | None = None,
) -> NgramAgreement:
    """One server of ``settings`` asked for all replies in order, and its simulation.

    ``then``: the demo's draft drafts where the method has nothing, or the head in ``whole``.
    """
    flavour = Flavour(engine.flavour)
    args = ModelArgs(threads=1)
    draft = whole or (DRAFT if then is not None else None)
    head = HeadKind.MTP if whole else None
    job = ServerJob(whole or TARGET, args, CONTEXT, draft, args, then, ngram=settings, head=head)
    simulated = NgramServer(settings, flavour)
    live, ours, apart, row = [], [], 0, None
    with Worker.open(engine, supervisor) as worker, Server(engine, job, supervisor) as server:
        load = model_load(engine, draft or TARGET, args, CONTEXT, gives_rows=whole is not None)
        info = worker.load(load)
        if whole:
            worker.load(head_load(engine, whole, args, CONTEXT, depth=N_MAX), onto=True)
        for one in written:
            answer = server.complete(one.prompt, tokens)
            said, reply = one.tokens, one.reply
            if answer.tokens is not None:
                said, reply = np.array(answer.tokens, np.int32), len(answer.tokens)
            elif not one.text.startswith(answer.text):
                apart += 1
            request = NgramRequest(
                np.array(one.prompt, np.int32),
                said,
                reply,
                info.eog,
                n_predict=tokens,
                context=min(CONTEXT, info.context_train),
            )
            live.append((answer.draft_n or 0, answer.draft_n_accepted or 0))
            if whole and then:
                limits = {"n_predict": tokens, "server_context": min(CONTEXT, info.context_train)}
                first = simulated.begin(request)
                counts, _, row = worker.live_shapes_head(
                    one.prompt, said, before=row, settings=then, first=first, **limits
                )
                ours.append(counts)
                continue
            if then is None:
                run = simulated.answer(request)
            else:
                seen = positions_of(
                    worker.replay(one.prompt, request.tokens, width=1),
                    request.tokens,
                    prompt=len(one.prompt),
                    reply=request.reply,
                    eog=info.eog,
                    n_predict=tokens,
                    context=request.context,
                )
                run = simulated.answer(request, seen, then)
            ours.append((run.draft_n, run.draft_n_accepted))
    return NgramAgreement(
        engine.name,
        str(settings) if then is None else f"{settings}, then n_max={then.n_max}",
        len(live),
        sum(a == b for a, b in zip(live, ours, strict=True)),
        apart,
        *((sum(d for d, _ in side), sum(a for _, a in side)) for side in (live, ours)),
    )
