"""From a recipe's quants and ready drafts to the steps that make and measure each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cook.build.layout import DraftPlan, Rival
from cook.build.locate import IMATRIX_ROLE, ModelFile, SourceReader
from cook.engines.arguments import placement
from cook.engines.base import Engine
from cook.engines.mixture import mixture_types
from cook.errors import InputError
from cook.formats.gguf import GgufFile
from cook.formats.output_head import is_head, with_head
from cook.formats.quant_types import LLAMA_CPP, bytes_as
from cook.formats.reduction import Reduction, kept_tensors
from cook.formats.vocabulary import read_vocabulary
from cook.graph.step import Input, Source
from cook.recipe.active import ActiveBytes, TokenReads, active_bytes
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.rules import Quant, Resolution, predicted_bytes, some
from cook.recipe.schema import Recipe
from cook.recipe.sources import HubRef
from cook.steps.corpus import TraceCorpusStep, corpus_args
from cook.steps.head import HeadStep
from cook.steps.imatrix import ImatrixStep
from cook.steps.memory import MemoryStep
from cook.steps.perplexity import DivergenceStep, PerplexityStep
from cook.steps.published_tensor import PublishedTensor
from cook.steps.quantize import QuantizeStep
from cook.steps.reduce import ReduceStep

if TYPE_CHECKING:
    from cook.prompts.prompt_set import PromptSet
    from cook.recipe.schema import Recipe, ScoreSpec


@dataclass(frozen=True)
class DraftLayout:
    """Lays out the drafts of one recipe on one engine.

    ``suffix`` ends every name where several engines make the same quants.
    """

    engine: Engine
    recipe: Recipe
    reader: SourceReader
    source: ModelFile | None
    corpus: Source | None
    suffix: str = ""

    def imatrix(self) -> ImatrixStep | Source | None:
        """The importance matrix: a step, a ready file, or none."""
        spec = self.recipe.imatrix
        if spec is None or self.source is None:
            return None
        if spec.file is not None:
            return self.reader.text(spec.file, IMATRIX_ROLE)
        args = placement(self.engine, "imatrix", spec.args.to_model_args())
        corpus: Source | TraceCorpusStep
        if isinstance(spec.corpus, Path | HubRef):
            corpus = self.reader.text(spec.corpus, "imatrix.corpus")
        else:
            score = self.recipe.score
            assert score is not None, "the schema asks for a target to write the text"
            target = self.reader.model(score.target.source)
            corpus = target_corpus(self.engine, self.source.source, target, score)
            args = (*args, *corpus_args(self.engine))
        return ImatrixStep(
            engine=self.engine,
            model=self.source.source,
            corpus=corpus,
            context=spec.context,
            chunks=spec.chunks,
            process_output=spec.process_output,
            minimum_coverage=spec.coverage.experts,
            otherwise=spec.coverage.otherwise,
            args=args,
        )

    def reference(self) -> PerplexityStep | None:
        """The source's own perplexity, and its logits where divergence is asked for."""
        spec = self.recipe.evaluate
        if spec is None or self.source is None or self.corpus is None:
            return None
        tokens = len(read_vocabulary(self.source.file).tokens) if spec.divergence else None
        return PerplexityStep(
            engine=self.engine,
            name="source",
            model=self.source.source,
            corpus=self.corpus,
            context=spec.context,
            chunks=spec.chunks,
            vocabulary_size=tokens,
            args=placement(self.engine, "perplexity", spec.args.to_model_args()),
        )

    def quants(
        self,
        resolved: Sequence[tuple[Quant, Resolution]],
        imatrix: ImatrixStep | Source | None,
        reference: PerplexityStep | None,
    ) -> Iterator[DraftPlan]:
        """A plan for every quant and all that is tried of it, in the recipe's order."""
        for quant, resolution in resolved:
            assert self.source is not None, "quants have a source"
            plan, types = self._quant(quant, resolution, imatrix, reference)
            for reduction in quant.candidates:
                yield self._reduced(plan, quant.name, self.source.file, types, reduction, reference)

    def ready(self, reference: PerplexityStep | None) -> Iterator[DraftPlan]:
        """A plan for the source, where it is a candidate, and for every ready file and all that
        is tried of it."""
        if self.recipe.include_source and self.source is not None:
            yield self._file("source", self.source.source, self.source.file, reference)
        for draft in self.recipe.drafts:
            model = self.reader.model(draft.source, draft.name)
            for output in draft.output or (None,):
                name, made, file = self._with_output(draft.name, model, output)
                plan = replace(self._file(name, made, file, reference), output=output)
                types = {t.name: t.type_name for t in file.tensors}
                for reduction in draft.candidates:
                    yield self._reduced(plan, name, file, types, reduction, reference)

    def behind(self, plans: Sequence[DraftPlan], first: Sequence[Rival]) -> tuple[DraftPlan, ...]:
        """``plans``, and each behind every one of ``first``: the same files."""

        def named(plan: DraftPlan, rival: Rival) -> str:
            names = (name.removesuffix(self.suffix) for name in (plan.name, rival.name))
            return " after ".join(names) + self.suffix

        return tuple(
            each
            for plan in plans
            for each in (plan, *(replace(plan, name=named(plan, r), after=r) for r in first))
        )

    def in_contexts(self, plans: Sequence[DraftPlan]) -> tuple[DraftPlan, ...]:
        """``plans`` with every context of a draft's own that the recipe lists, which mainline has
        not; they differ in memory alone."""
        score = self.recipe.score
        if score is None or not score.draft.context or self.engine.flavour == LLAMA_CPP:
            return tuple(plans)
        return tuple(
            replace(
                plan,
                name=named + self.suffix,
                context=context,
                memory=replace(plan.memory, name=named, context=context) if plan.memory else None,
            )
            for plan in plans
            for context in score.draft.context
            for named in (f"{plan.name.removesuffix(self.suffix)} context={context}",)
        )

    def _with_output(
        self, name: str, model: ModelFile, output: str | None
    ) -> tuple[str, Input, GgufFile]:
        """What ``model`` is called with its output head as ``output``, what makes it, its header;
        the file as it is where that changes nothing."""
        if output is None:
            return name, model.source, model.file
        name = f"{name} output={output}"
        if is_head(model.file, output):
            return name, model.source, model.file
        file = with_head(model.file, output)
        step = HeadStep(self.engine, name, model.source, output, file.tensor_bytes)
        return name, step, file

    def _file(
        self, name: str, model: Input, file: GgufFile, reference: PerplexityStep | None
    ) -> DraftPlan:
        """A plan of a whole file that no quant of the recipe is."""
        return DraftPlan(
            name=name + self.suffix,
            model=model,
            quantize=None,
            quality=self._quality(name, model, reference),
            memory=self._memory(name, model),
            predicted_tensor_bytes=file.tensor_bytes,
            elements=_elements(file),
            active=active_bytes(file),
            type_counts=dict(Counter(t.type_name for t in file.tensors)),
        )

    def _reduced(
        self,
        whole: DraftPlan,
        name: str,
        file: GgufFile,
        types: Mapping[str, str],
        reduction: Reduction,
        reference: PerplexityStep | None,
    ) -> DraftPlan:
        """``whole``, a plan of ``file`` in ``types`` that the recipe calls ``name``, with
        ``reduction``; the same file where that changes nothing."""
        if reduction == Reduction():
            return whole
        named = reduction.named(name)
        changes = reduction.applied_to(file)
        if changes is None:
            return replace(whole, name=named + self.suffix, reduction=reduction)
        kept = kept_tensors(file, changes)
        sizes = _sizes(file, types)
        sizes = {t: n for t, n in sizes.items() if t in kept} if sizes is not None else None
        reads = TokenReads(file, changes.experts)
        total = sum(sizes.values()) if sizes is not None else None
        step = ReduceStep(named, whole.model, changes, total)
        return replace(
            whole,
            name=named + self.suffix,
            model=step,
            reduction=reduction,
            quality=self._quality(named, step, reference),
            memory=self._memory(named, step),
            predicted_tensor_bytes=total,
            elements=sum(t.elements for t in file.tensors if t.name in kept),
            active=reads.of(sizes) if sizes is not None and reads.known else None,
            type_counts=dict(Counter(types[t] for t in kept if t in types)),
        )

    def _quant(
        self,
        quant: Quant,
        resolution: Resolution,
        imatrix: ImatrixStep | Source | None,
        reference: PerplexityStep | None,
    ) -> tuple[DraftPlan, Mapping[str, str]]:
        """The plan, and the types as far as they are known."""
        assert self.source is not None, "quants have a source"
        assert self.recipe.model is not None, "quants have a source"
        known = {name: t for name, t in resolution.types.items() if t is not None}
        step = QuantizeStep(
            engine=self.engine,
            quant=quant.name,
            source=self.source.source,
            imatrix=imatrix if quant.use_imatrix else None,
            ftype=quant.ftype,
            rules=to_engine_rules(resolution),
            expected=tuple(sorted(known.items())),
            predicted_tensor_bytes=predicted_bytes(self.source.file.tensors, resolution),
            allow_requantize=self.recipe.model.allow_requantize,
            split=quant.split,
        )
        if not resolution.complete:
            step, known = self._with_mixture(step, self.source.file, known)
        if quant.tensors_from is not None:
            step = replace(step, imatrix=None, published=self._published(quant, known))
        plan = DraftPlan(
            name=quant.name + self.suffix,
            model=step,
            quantize=step,
            quality=self._quality(quant.name, step, reference),
            memory=self._memory(quant.name, step),
            predicted_tensor_bytes=step.predicted_tensor_bytes,
            elements=_elements(self.source.file),
            active=self._active(known),
            type_counts=dict(Counter(known.values())),
        )
        return plan, known

    def _published(self, quant: Quant, types: Mapping[str, str]) -> tuple[PublishedTensor, ...]:
        """The tensors of ``quant`` that change their type, as somebody published them.

        InputError where the engine's own mixture would decide on some.
        """
        assert self.source is not None, "quants have a source"
        assert quant.tensors_from is not None, "asked for"
        if undecided := [t.name for t in self.source.file.tensors if t.name not in types]:
            raise InputError(
                f"quant {quant.name}: `tensors_from` needs every type stated, and the engine's "
                f"mixture decides on {some(undecided)}",
                hint="write `mixture: pure`, or rules for them",
            )
        changed = (t for t in self.source.file.tensors if types[t.name] != t.type_name)
        return self.reader.published(quant.tensors_from, [(t, types[t.name]) for t in changed])

    @cached_property
    def _reads(self) -> TokenReads:
        assert self.source is not None, "asked of quants, which have a source"
        return TokenReads(self.source.file)

    def _active(self, types: Mapping[str, str]) -> ActiveBytes | None:
        """What a token reads of a quant of these types, by tensor."""
        assert self.source is not None, "asked of quants, which have a source"
        sizes = _sizes(self.source.file, types)
        return self._reads.of(sizes) if sizes is not None and self._reads.known else None

    def _with_mixture(
        self, step: QuantizeStep, file: GgufFile, known: dict[str, str]
    ) -> tuple[QuantizeStep, dict[str, str]]:
        """``step`` with what the engine's own mixture gives the tensors that no rule hits."""
        anything = Path("imatrix") if step.imatrix is not None else None
        job = step.job(Path("unused"), anything, 1)
        types = mixture_types(self.engine, job, step.source.key)
        sizes = _sizes(file, types)
        total = sum(sizes.values()) if sizes is not None else None
        stated = tuple(sorted(types.items()))
        return replace(step, expected=stated, predicted_tensor_bytes=total), dict(types)

    def _quality(
        self, name: str, model: Input, reference: PerplexityStep | None
    ) -> DivergenceStep | PerplexityStep | None:
        spec = self.recipe.evaluate
        if spec is None or self.corpus is None:
            return None
        args = placement(self.engine, "perplexity", spec.args.to_model_args())
        if reference is not None and spec.divergence:
            return DivergenceStep(self.engine, name, model, reference, args)
        return PerplexityStep(
            self.engine, name, model, self.corpus, spec.context, spec.chunks, None, args
        )

    def _memory(self, name: str, model: Input) -> MemoryStep | None:
        score = self.recipe.score
        if score is None:
            return None
        given, target = score.draft.args.to_model_args(), score.target.args.to_model_args()
        args = self.engine.as_draft(given, target, score.context)
        return MemoryStep(self.engine, name, model, args, score.context)


def _sizes(file: GgufFile, types: Mapping[str, str]) -> dict[str, int] | None:
    """Bytes of every tensor's data as ``types`` say; None where one is not known."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors:
        wanted = types.get(tensor.name)
        if wanted is None:
            return None
        kept = tensor.size_bytes if wanted == tensor.type_name else bytes_as(wanted, tensor.shape)
        if kept is None:
            return None
        sizes[tensor.name] = kept
    return sizes


def _elements(file: GgufFile) -> int:
    return sum(tensor.elements for tensor in file.tensors)


def target_corpus(
    engine: Engine, model: Source, target: ModelFile, score: ScoreSpec
) -> TraceCorpusStep:
    """The calibration text of ``score``'s target, for ``model``: what it writes, as it will be
    sampled, on the prompts of its set that are kept apart from scoring.

    InputError when none are left.
    """
    from cook.prompts.calibration import split_for_calibration
    from cook.prompts.prompt_set import load_prompts
    from cook.steps.trace import TraceStep

    split = split_for_calibration(score.prompts, load_prompts(score.prompts))
    trace = TraceStep(
        engine=engine,
        target=target.source,
        args=score.target.args.to_model_args(),
        context=score.context,
        prompts=split.calibration.prompts,
        max_tokens=score.max_tokens,
        sampling=score.sampling.to_sampling(),
        chat="tokenizer.chat_template" in target.file.metadata,
    )
    return TraceCorpusStep(engine, model, trace)


def left_to_score(recipe: Recipe, prompts: PromptSet) -> PromptSet:
    """``prompts`` without those that ``imatrix.corpus: trace`` calibrates on, before any limit."""
    from cook.prompts.calibration import split_for_calibration

    spec = recipe.imatrix
    if spec is None or spec.corpus != "trace" or recipe.score is None:
        return prompts
    return split_for_calibration(recipe.score.prompts, prompts).scoring
