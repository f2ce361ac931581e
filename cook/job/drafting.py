"""From a recipe's quants and ready drafts to the steps that make and measure each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cook.engines.arguments import placement
from cook.engines.base import Engine
from cook.engines.mixture import mixture_types
from cook.errors import InputError
from cook.formats.gguf import GgufFile, TensorInfo
from cook.formats.heads import Head, head_alone, head_of, only_inside
from cook.formats.quant_types import LLAMA_CPP, bytes_as
from cook.formats.quantized_file import has_output_type, with_output_type
from cook.formats.reduction import Reduction, kept_tensors
from cook.formats.vocabulary import read_vocabulary
from cook.graph.step import Input, Source
from cook.job.layout import DraftPlan, Rival
from cook.job.locate import IMATRIX_ROLE, ModelFile, SourceReader
from cook.paths import cook_home
from cook.prompts.prompt_set import Prompt, PromptSet, load_prompts, split_for_calibration
from cook.recipe.active import TokenReads
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.lint import no_head_imatrix
from cook.recipe.rules import Quant, Resolution, TensorsFrom, some
from cook.recipe.schema import EvaluateSpec, Recipe, ScoreSpec
from cook.recipe.sources import OWN_HEAD, HubRef
from cook.steps.copies import ReduceStep, SpliceHeadStep, shares_target
from cook.steps.draft_quality import DivergenceStep, MemoryStep, PerplexityStep
from cook.steps.imatrix import HeadImatrixStep, ImatrixStep, TraceCorpusStep, corpus_args
from cook.steps.output_type import OutputTypeStep
from cook.steps.quantize import PublishedTensor, QuantizeStep
from cook.steps.trace import TraceStep
from cook.units import size


@dataclass(frozen=True)
class DraftLayout:
    """Lays out the drafts of one recipe on one engine.

    ``suffix`` ends every name where several engines make the same quants. ``parts``: what of the
    source they are made of (:attr:`Quant.part`).
    """

    engine: Engine
    recipe: Recipe
    reader: SourceReader
    source: ModelFile | None
    suffix: str = ""
    parts: Collection[str | None] = (None,)

    @cached_property
    def imatrix(self) -> ImatrixStep | HeadImatrixStep | Source | None:
        """The importance matrix: a step, a ready file, or none."""
        spec = self.recipe.imatrix
        if spec is None or self.source is None:
            return None
        if spec.file is not None:
            return self.reader.text(spec.file, IMATRIX_ROLE)
        args = placement(self.engine, "imatrix", spec.args.to_model_args())
        score, special = self.recipe.score, False
        target = self.reader.model(score.target.source, "target") if score is not None else None
        corpus: Source | TraceCorpusStep
        if isinstance(spec.corpus, Path | HubRef):
            corpus = self.reader.text(spec.corpus, "imatrix.corpus")
        else:
            assert score is not None, "the schema asks for a target to write the text"
            assert target is not None, "it is the score's"
            corpus = target_corpus(self.engine, self.source.source, target, score)
            args = (*args, *corpus_args(self.engine))
            special = bool(corpus_args(self.engine))
        step = ImatrixStep(
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
        alone = (head := head_of(self.source.file)) is not None and head.alone
        if set(self.parts) <= {None} or no_head_imatrix(self.recipe, self.engine.flavour, alone):
            return step if None in self.parts else None
        return HeadImatrixStep(
            engine=self.engine,
            model=self.source.source,
            target=target.source if target is not None else self.source.source,
            target_args=(score.target if score is not None else spec).args.to_model_args(),
            corpus=corpus,
            context=spec.context,
            chunks=spec.chunks,
            process_output=spec.process_output,
            minimum_coverage=spec.coverage.experts,
            otherwise=spec.coverage.otherwise,
            special=special,
            trunk=step if None in self.parts else None,
        )

    @cached_property
    def reference(self) -> PerplexityStep | None:
        """The source's own perplexity, and its logits where divergence is asked for."""
        spec = self.recipe.evaluate
        if spec is None or self.source is None or set(self.parts) == {"head"}:
            return None
        tokens = len(read_vocabulary(self.source.file).tokens) if spec.divergence else None
        return self._perplexity("source", self.source.source, spec, tokens)

    def quants(self, resolved: Iterable[tuple[Quant, Resolution]]) -> Iterator[DraftPlan]:
        """A plan for every quant and all that is tried of it, in the recipe's order."""
        for quant, resolution in resolved:
            assert self.source is not None, "quants have a source"
            plan, types = self._quant(quant, resolution, self.source)
            if quant.part is not None:
                yield plan
                continue
            for reduction in quant.candidates:
                yield self._reduced(plan, quant.name, self.source.file, types, reduction)

    def ready(self) -> Iterator[DraftPlan]:
        """A plan for the source, where it is a candidate, and for every ready file and all that
        is tried of it."""
        if self.recipe.include_source and self.source is not None:
            file = self.source.file
            if (head := head_of(file)) is not None and head.alone:
                yield self._head("source", self.source.source, head, file)
            else:
                yield self._draft("source", self.source.source, file, _types(file), self._reads)
        for draft in self.recipe.drafts:
            if draft.source == OWN_HEAD:
                assert self.recipe.score is not None, "the schema asks for a target"
                found = self.reader.model(self.recipe.score.target.source, "target")
            else:
                found = self.reader.model(draft.source, draft.name)
            head = head_of(found.file)
            if head is not None and (head.alone or draft.source == OWN_HEAD):
                yield self._head(draft.name, found.source, head, found.file)
                continue
            for output in draft.output or (None,):
                name, file = draft.name, found.file
                model: Input = found.source
                if output is not None:
                    name = f"{name} output={output}"
                    if not has_output_type(file, output):
                        file = with_output_type(file, output)
                        size_bytes = file.tensor_bytes
                        model = OutputTypeStep(self.engine, name, found.source, output, size_bytes)
                plan = self._draft(name, model, file, _types(file), TokenReads(file))
                plan = replace(plan, output=output)
                for reduction in draft.candidates:
                    yield self._reduced(plan, name, file, _types(file), reduction)

    def _head(
        self,
        name: str,
        model: Input,
        head: Head,
        file: GgufFile,
        types: Mapping[str, str] | None = None,
    ) -> DraftPlan:
        """The plan of ``model``, which is or holds ``head`` as in ``file``, or in ``types``."""
        tensors = head.tensors_of(file)
        known = _types(file) if types is None else types
        sizes = _sizes(tensors, known)
        return DraftPlan(
            name=name + self.suffix,
            model=model,
            predicted_tensor_bytes=sum(sizes.values()) if sizes is not None else None,
            elements=sum(tensor.elements for tensor in tensors),
            type_counts=dict(Counter(known[t.name] for t in tensors if t.name in known)),
            head=head,
        )

    def behind(self, plans: Sequence[DraftPlan], first: Sequence[Rival]) -> Iterator[DraftPlan]:
        """``plans``, and each behind every one of ``first``: the same files."""
        for plan in plans:
            yield plan
            for rival in first:
                names = [name.removesuffix(self.suffix) for name in (plan.name, rival.name)]
                yield replace(plan, name=" after ".join(names) + self.suffix, after=rival)

    def warnings(self, plans: Sequence[DraftPlan]) -> Iterator[str]:
        """What the copies of the target cost in which ik_llama.cpp takes quants of a head."""
        spliced = [p.model for p in plans if isinstance(p.model, SpliceHeadStep)]
        if not spliced:
            return
        target = spliced[0].target
        shared = shares_target(target)
        room = sum(step.disk_bytes() or 0 for step in spliced)
        yield (
            f"{self.engine.name} takes a head only inside of the target's file: "
            f"{len(spliced)} copies of {target.path.name} ({size(target.size_bytes)}) with a head "
            f"each take {size(room)}, since the file system of {cook_home()} "
            f"{'shares their blocks' if shared else 'shares no blocks with it'}; the target's own "
            "output and embeddings stay"
        )

    def in_contexts(self, plans: Sequence[DraftPlan]) -> tuple[DraftPlan, ...]:
        """``plans`` with every context of a draft's own that the recipe lists, which mainline has
        not; they differ in memory alone."""
        score = self.recipe.score
        if score is None or not score.draft.context or self.engine.flavour == LLAMA_CPP:
            return tuple(plans)
        heads = [plan for plan in plans if plan.head is not None]  # in the target's context
        models = (
            replace(
                plan,
                name=named + self.suffix,
                context=context,
                memory=replace(plan.memory, name=named, context=context) if plan.memory else None,
            )
            for plan in plans
            if plan.head is None
            for context in score.draft.context
            for named in (f"{plan.name.removesuffix(self.suffix)} context={context}",)
        )
        return (*models, *heads)

    def _draft(
        self,
        name: str,
        model: Input,
        file: GgufFile,
        types: Mapping[str, str],
        reads: TokenReads,
        kept: Collection[str] | None = None,
    ) -> DraftPlan:
        """The plan of ``model``, which has the tensors of ``file``, or those that are ``kept``, as
        far as is known in ``types``."""
        tensors = [t for t in file.tensors if kept is None or t.name in kept]
        sizes = _sizes(tensors, types)
        spec, score = self.recipe.evaluate, self.recipe.score
        quality: DivergenceStep | PerplexityStep | None = None
        if spec is not None and self.reference is not None and spec.divergence:
            args = placement(self.engine, "perplexity", spec.args.to_model_args())
            quality = DivergenceStep(self.engine, name, model, self.reference, args)
        elif spec is not None:
            quality = self._perplexity(name, model, spec)
        memory = None
        if score is not None:
            given, target = score.draft.args.to_model_args(), score.target.args.to_model_args()
            own = self.engine.as_draft(given, target, score.context)
            memory = MemoryStep(self.engine, name, model, own, score.context)
        return DraftPlan(
            name=name + self.suffix,
            model=model,
            quality=quality,
            memory=memory,
            predicted_tensor_bytes=sum(sizes.values()) if sizes is not None else None,
            elements=sum(t.elements for t in tensors),
            active=reads.of(sizes) if sizes is not None and reads.known else None,
            type_counts=dict(Counter(types[t.name] for t in tensors if t.name in types)),
        )

    def _reduced(
        self,
        whole: DraftPlan,
        name: str,
        file: GgufFile,
        types: Mapping[str, str],
        reduction: Reduction,
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
        sizes = _sizes([t for t in file.tensors if t.name in kept], types)
        step = ReduceStep(named, whole.model, changes, sum(sizes.values()) if sizes else None)
        plan = self._draft(named, step, file, types, TokenReads(file, changes.experts), kept)
        return replace(plan, quantize=whole.quantize, output=whole.output, reduction=reduction)

    def _quant(
        self, quant: Quant, resolution: Resolution, source: ModelFile
    ) -> tuple[DraftPlan, Mapping[str, str]]:
        """The plan, and the types as far as they are known."""
        assert self.recipe.model is not None, "quants have a source"
        types = {name: t for name, t in resolution.types.items() if t is not None}
        file = head_alone(source.file) if quant.part is not None else source.file
        imatrix = self.imatrix if quant.use_imatrix else None
        if quant.part is not None and isinstance(imatrix, ImatrixStep):
            imatrix = None  # it has nothing of a head: cook.recipe.lint says so
        step = QuantizeStep(
            engine=self.engine,
            quant=quant.name,
            source=source.source,
            imatrix=imatrix,
            ftype=quant.ftype,
            rules=to_engine_rules(resolution),
            expected=tuple(sorted(types.items())),
            predicted_tensor_bytes=None,
            allow_requantize=self.recipe.model.allow_requantize,
            split=quant.split,
            part=quant.part,
        )
        if not resolution.complete:
            # What the engine's own mixture gives the tensors that no rule hits.
            anything = Path("imatrix") if step.imatrix is not None else None
            job = step.job(Path("unused"), anything, 1)
            part = file if quant.part is not None else None
            types = dict(mixture_types(self.engine, job, step.source.key, part))
            step = replace(step, expected=tuple(sorted(types.items())))
        if quant.tensors_from is not None:
            published = self._published(quant, quant.tensors_from, file, types)
            step = replace(step, imatrix=None, published=published)
        sizes = _sizes(file.tensors, types)
        step = replace(step, predicted_tensor_bytes=sum(sizes.values()) if sizes else None)
        if (head := head_of(file)) is not None and quant.part is not None:
            model: Input = step
            if self.recipe.score is not None and only_inside(file, self.engine.flavour):
                # It runs inside of the target's file alone.
                target = self.reader.model(self.recipe.score.target.source, "target").source
                held = _sizes([t for t in file.tensors if t.name.startswith("blk.")], types)
                held_bytes = sum(held.values()) if held is not None else None
                model = SpliceHeadStep(quant.name, target, step, held_bytes)
                head = replace(head, alone=False)
            plan = self._head(quant.name, model, head, file, types)
        else:
            plan = self._draft(quant.name, step, file, types, self._reads)
        return replace(plan, quantize=step), types

    def _published(
        self, quant: Quant, origin: TensorsFrom, file: GgufFile, types: Mapping[str, str]
    ) -> tuple[PublishedTensor, ...]:
        """The tensors of ``quant`` that change their type, as somebody published them.

        InputError where the engine's own mixture would decide on some.
        """
        if undecided := [t.name for t in file.tensors if t.name not in types]:
            raise InputError(
                f"quant {quant.name}: `tensors_from` needs every type stated, and the engine's "
                f"mixture decides on {some(undecided)}",
                hint="write `mixture: pure`, or rules for them",
            )
        changed = (t for t in file.tensors if types[t.name] != t.type_name)
        return self.reader.published(origin, [(t, types[t.name]) for t in changed])

    @cached_property
    def _reads(self) -> TokenReads:
        assert self.source is not None, "asked of quants, which have a source"
        return TokenReads(self.source.file)

    def _perplexity(
        self, name: str, model: Input, spec: EvaluateSpec, vocabulary_size: int | None = None
    ) -> PerplexityStep:
        return PerplexityStep(
            engine=self.engine,
            name=name,
            model=model,
            corpus=self.reader.text(spec.corpus, "evaluate.corpus"),
            context=spec.context,
            chunks=spec.chunks,
            vocabulary_size=vocabulary_size,
            args=placement(self.engine, "perplexity", spec.args.to_model_args()),
        )


def _types(file: GgufFile) -> dict[str, str]:
    return {tensor.name: tensor.type_name for tensor in file.tensors}


def _sizes(tensors: Iterable[TensorInfo], types: Mapping[str, str]) -> dict[str, int] | None:
    """Bytes of every tensor's data as ``types`` say; None where one is not known."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        wanted = types.get(tensor.name)
        if wanted is None:
            return None
        kept = tensor.size_bytes if wanted == tensor.type_name else bytes_as(wanted, tensor.shape)
        if kept is None:
            return None
        sizes[tensor.name] = kept
    return sizes


def target_corpus(
    engine: Engine, model: Source, target: ModelFile, score: ScoreSpec
) -> TraceCorpusStep:
    """The calibration text of ``score``'s target, for ``model``: what it writes, as it will be
    sampled, on the prompts of its set that are kept apart from scoring.

    InputError when none are left.
    """
    split = split_for_calibration(score.prompts, load_prompts(score.prompts))
    trace = lay_trace(engine, score, target, split.calibration.prompts)
    return TraceCorpusStep(engine, model, replace(trace, batch_width=1))


def lay_trace(
    engine: Engine, score: ScoreSpec, target: ModelFile, prompts: tuple[Prompt, ...]
) -> TraceStep:
    """The recording of what ``target`` says to ``prompts`` on ``engine``."""
    return TraceStep(
        engine=engine,
        target=target.source,
        args=score.target.args.to_model_args(),
        context=score.context,
        prompts=prompts,
        max_tokens=score.max_tokens,
        sampling=score.sampling.to_sampling(),
        chat=has_template(target.file),
        batch_width=score.batch_width,
    )


def has_template(file: GgufFile) -> bool:
    """Whether prompts are rendered by the target's own chat template."""
    return "tokenizer.chat_template" in file.metadata


def left_to_score(recipe: Recipe, prompts: PromptSet) -> PromptSet:
    """``prompts`` without those that ``imatrix.corpus: trace`` calibrates on, before any limit."""
    spec = recipe.imatrix
    if spec is None or spec.corpus != "trace" or recipe.score is None:
        return prompts
    return split_for_calibration(recipe.score.prompts, prompts).scoring
