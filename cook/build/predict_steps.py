"""The steps below ``cook predict``, and what their outcomes say of every draft and setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cook.build.forecast import PROFILES
from cook.build.predict import Asked, Predicted, Row, Told
from cook.engines.base import Engine, ModelArgs
from cook.formats.naming import model_stem
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import Source, Step
from cook.scoring.price import BatchCurve, PricedReplies, Timings, break_even, predict
from cook.scoring.sampled import SampledPrediction, SampledReply, predict_sampled
from cook.scoring.simulate import RULES, Positions, Profile, Setting, simulate
from cook.steps.curve import PASSES, CurveOutcome, CurveStep, combined, widths_for
from cook.steps.http_replay import Agreement, HttpReplayStep, agreement, http_positions
from cook.steps.replay import ReplayStep, positions_in, replayed, sampled_reply
from cook.steps.trace import RecordedTraceStep

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cook.engines.worker.messages import Replay
    from cook.formats.trace_file import Reply, ReplyHead

Curve = tuple[CurveStep, ...]
"""One curve, a step a pass."""


class PredictSteps:
    """The steps below one command, and what their outcomes say."""

    def __init__(
        self,
        asked: Asked,
        engine: Engine,
        trace: RecordedTraceStep,
        target: Source | None,
        *,
        worker: bool,
    ) -> None:
        from cook.formats.gguf import read_gguf
        from cook.graph.step import source

        self.asked, self.engine, self.trace = asked, engine, trace
        self.profile = asked.profile or PROFILES[Flavour(engine.flavour)]
        self.settings = _settings(asked, self.profile)
        rollouts = max(asked.n_max) if any(s.p_min for s in self.settings) else 0
        widths = widths_for(asked.n_max)
        args = asked.draft_args

        def curves(name: str, model: Source, placed: ModelArgs, verifies: bool) -> Curve:
            return tuple(
                CurveStep(engine, name, model, trace, placed, verifies, widths, turn)
                for turn in range(PASSES)
            )

        self.verify: Curve = ()
        if target is not None and asked.verify is None:
            self.verify = curves("target", target, asked.target_args, True)
        timed = bool(self.verify or asked.verify is not None) and asked.draft_s is None
        self.replays: list[ReplayStep | None] = []
        self.http: list[HttpReplayStep | None] = []
        self.curves: list[Curve] = []
        self.names: list[str] = []
        for path in asked.drafts:
            draft, name = source(read_gguf(path).shards), model_stem(path)
            self.names.append(name)
            replay = ReplayStep(engine, name, draft, trace, args, rollouts)
            http = HttpReplayStep(engine, name, draft, trace, args, asked.n_max, self.profile)
            self.replays.append(replay if worker else None)
            self.http.append(http if asked.over_http else None)
            self.curves.append(curves(name, draft, args, False) if timed else ())

    def steps(self) -> list[Step[Any]]:
        """The replays, then the timings pass after pass, all models in turn."""
        replays = [step for step in (*self.replays, *self.http) if step is not None]
        steps: list[Step[Any]] = [self.trace, *replays]
        for turn in range(PASSES):
            for curve in (self.verify, *self.curves):
                steps += curve[turn : turn + 1]
        return steps

    def told(self, trace: TraceFile, executor: Executor) -> Told:
        """What the outcomes of all steps say."""
        verify = _curve(self.verify, executor)
        warnings = [*self._warnings(trace), *(verify.warnings if verify is not None else ())]
        found: list[Predicted] = []
        no_draft = None
        heads = trace.heads
        for index in range(len(self.names)):
            times = _curve(self.curves[index], executor)
            warnings += times.warnings if times is not None else ()
            timings = self._timings(verify, times)
            draft = self._draft(index, trace, executor, timings)
            if no_draft is None and timings is not None:
                bare = [Positions(h.prompt_tokens, h.emitted, _nothing(h.emitted)) for h in heads]
                no_draft = self._predict(heads, bare, Setting(0), timings)
            found.append(draft)
        return Told(
            trace=trace,
            profile=self.profile,
            engine=self.engine.name,
            no_draft=no_draft,
            drafts=tuple(found),
            warnings=tuple(dict.fromkeys(warnings)),
            prefill_known=verify is not None and self.asked.draft_s is None,
        )

    def _draft(
        self, index: int, trace: TraceFile, executor: Executor, timings: Timings | None
    ) -> Predicted:
        outcomes, replay, http = executor.outcomes, self.replays[index], self.http[index]
        by_worker: list[Positions] = []
        chances: list[SampledReply] = []
        if replay is not None:
            # one reply at a time: its stored candidates are far larger than what is kept of it
            for reply, found in replayed(replay, trace, outcomes.artifact(replay)):
                by_worker.append(self._positions(trace, reply, found))
                if (chance := sampled_reply(trace, reply, found)) is not None:
                    chances.append(chance)
        rows, agreed = [], []
        for setting in self.settings:
            texts = by_worker
            if http is not None:
                texts = http_positions(http, trace, outcomes.artifact(http), setting.n_max)
                if by_worker:
                    agreed.append(self._agreement(texts, by_worker, setting))
            rows.append(self._row(trace.heads, texts, setting, timings))
        path = self.asked.drafts[index]
        return Predicted(
            name=self.names[index],
            path=path,
            file_bytes=path.stat().st_size,
            replay=outcomes.result(replay) if replay is not None else None,
            rows=tuple(rows),
            sampled=self._sampled(chances, timings),
            agreement=tuple(agreed),
        )

    def _agreement(
        self, http: Sequence[Positions], worker: Sequence[Positions], setting: Setting
    ) -> Agreement:
        counts = []
        for texts in (http, worker):
            runs = [simulate(text, setting, self.profile) for text in texts]
            counts.append([(run.draft_n, run.draft_n_accepted) for run in runs])
        return agreement(*counts)

    def _warnings(self, trace: TraceFile) -> list[str]:
        """What is doubtful about the trace."""
        header, found = trace.header, []
        if trace.cut_short:
            found.append(f"{trace.path}: its last reply is cut short and left out")
        if header.tokenizer is None:
            found.append(
                f"{trace.path}: the target's tokens are not known (recorded without --tokenizer), "
                "so the drafts' could not be compared with them"
            )
        beyond = max(self.asked.n_max) + 1
        has = min((h.tokens - h.emitted for h in trace.heads if h.stop == "eog"), default=beyond)
        if not RULES[self.profile].breaks_at_eog and has < beyond:
            found.append(
                f"{self.profile.value} drafts past the end of a reply; {trace.path} has "
                f"{has} tokens there, n_max {beyond - 1} needs {beyond}: counts at the ends of "
                "replies are too low"
            )
        return found

    def _timings(self, verify: CurveOutcome | None, draft: CurveOutcome | None) -> Timings | None:
        target = self.asked.verify
        if verify is not None:
            target = verify.batches
        if target is None:
            return None
        typed = self.asked.draft_s
        curve = None
        if typed is not None:
            curve = BatchCurve((0,), (1,), ((typed,),))
        elif draft is not None:
            curve = draft.batches
        return Timings(
            verify=target,
            draft=curve,
            target_sample_s=verify.sample_s if verify else 0.0,
            draft_sample_s=draft.sample_s if draft else 0.0,
            target_prefill=verify.prompts if verify else None,
            draft_prefill=draft.prompts if draft else None,
        )

    def _positions(self, trace: TraceFile, reply: Reply, found: Replay) -> Positions:
        header = trace.header
        return positions_in(trace, reply, found, n_predict=header.n_predict, context=header.context)

    def _predict(
        self,
        heads: Sequence[ReplyHead],
        texts: Sequence[Positions],
        setting: Setting,
        timings: Timings,
    ) -> PricedReplies:
        return predict(
            texts,
            setting,
            timings,
            self.profile,
            categories=[head.category for head in heads],
            weights=[head.weight for head in heads],
        )

    def _row(
        self,
        heads: Sequence[ReplyHead],
        texts: Sequence[Positions],
        setting: Setting,
        timings: Timings | None,
    ) -> Row:
        import numpy as np

        found = self._predict(heads, texts, setting, timings or _UNIT)
        depths = np.zeros((2, setting.n_max), np.int64)
        for text in texts:
            depths += np.array(simulate(text, setting, self.profile).by_depth(setting.n_max))
        middle = round(sum(t.prompt + t.reply / 2 for t in texts) / len(texts))
        even = break_even(timings, setting, self.profile, middle) if timings else None
        return Row(found, tuple((int(d), int(a)) for d, a in depths.T), even)

    def _sampled(
        self, replies: Sequence[SampledReply], timings: Timings | None
    ) -> tuple[SampledPrediction, ...]:
        if not replies:
            return ()
        return tuple(
            predict_sampled(replies, n_max, timings, self.profile) for n_max in self.asked.n_max
        )


_UNIT = Timings(verify=BatchCurve((0,), (1,), ((1.0,),)), draft=BatchCurve((0,), (1,), ((1e-9,),)))
"""Every target step costs the same and drafting nothing: ranks by acceptance length alone."""


def _curve(passes: Sequence[CurveStep], executor: Executor) -> CurveOutcome | None:
    """Medians over the passes; None where the curve is not measured."""
    results = [executor.outcomes.result(step) for step in passes]
    done = [result for result in results if result is not None]
    return combined(done) if done else None


def _settings(asked: Asked, profile: Profile) -> tuple[Setting, ...]:
    """Every n_max with every p_min; where the engine's p_min never fires, only 0."""
    chances = asked.p_min if RULES[profile].uses_p_min else (0.0,)
    return tuple(Setting(n, 0, p) for p in dict.fromkeys(chances) for n in asked.n_max)


def _nothing(count: int) -> npt.NDArray[np.bool_]:
    """Matches of no draft at all."""
    import numpy as np

    return np.zeros(count, np.bool_)
