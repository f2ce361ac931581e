"""From what a recipe lists (quants that extend others, sweeps) to plain candidates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from cook.documents.spec import NAME_PATTERN
from cook.documents.tree import Locations
from cook.errors import Problem, RecipeError
from cook.recipe.rules import Quant, Rule
from cook.recipe.schema import MAX_QUANTS, QuantSettings, QuantSpec, Recipe, RuleSpec, SweepSpec

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def expand(recipe: Recipe, locations: Locations | None = None) -> tuple[Quant, ...]:
    """The candidates to quantize, in the recipe's order: quants, then sweeps.

    With ``locations`` (of a loaded recipe) quants and rules know their places. RecipeError for
    unknown or cyclic ``extends``, a missing base type, equal names, or more than 1,024 quants,
    each counted with all that is tried of it.
    """
    quants, problems = expand_parts(
        list(enumerate(recipe.quants)),
        list(enumerate(recipe.sweep)),
        locations or Locations("<recipe>"),
        {d.name: i for i, d in enumerate(recipe.drafts)},
    )
    if problems:
        raise RecipeError(problems)
    return quants


def expand_parts(
    quants: Sequence[tuple[int, QuantSpec]],
    sweeps: Sequence[tuple[int, SweepSpec]],
    locations: Locations,
    drafts: Mapping[str, int],
    faulty: frozenset[str] = frozenset(),
) -> tuple[tuple[Quant, ...], tuple[Problem, ...]]:
    """As :func:`expand`, for the valid parts of a recipe that has faults elsewhere.

    ``drafts`` is name -> index of ready drafts; ``faulty`` are names of quants whose own faults
    are reported already.
    """
    job = _Expansion(quants, locations, faulty)
    found = [q for index, spec in quants if (q := job.quant(index, spec))]
    for index, sweep in sweeps:
        if len(found) + sweep.count > MAX_QUANTS:
            message = f"the sweep has {sweep.count} quants: more than {MAX_QUANTS} in all"
            job.problems.append(locations.at("sweep", index, "over").problem(message))
            continue
        found.extend(job.sweep(index, sweep))
    total = 0
    for quant in found:
        total += len(quant.candidates)
        if total > MAX_QUANTS and quant.at:
            message = f"with `{quant.name}` there are {total} candidates: more than {MAX_QUANTS}"
            hint = "fewer `experts` or `prune_layers`"
            job.problems.append(quant.at.problem(message, hint=hint))
            break
    seen: dict[str, Quant] = {}
    for quant in found:
        # File systems may fold case, so names that differ only in it collide.
        folded = quant.name.lower()
        if folded in seen and quant.at:
            other = seen[folded].at
            line = f" (first on line {other.line})" if other else ""
            job.problems.append(quant.at.problem(f"two quants named `{quant.name}`{line}"))
        seen.setdefault(folded, quant)
    for name, index in drafts.items():
        if name.lower() in seen:
            at = locations.at("drafts", index, "name")
            job.problems.append(at.problem(f"`{name}` is also the name of a quant"))
    return tuple(found), tuple(job.problems)


@dataclass(frozen=True)
class _Settings:
    """What a quant has after inheriting: its own keys or those it inherits, and all rules."""

    keys: QuantSettings
    rules: tuple[Rule, ...] = ()

    def fill(self, own: QuantSettings, rules: tuple[Rule, ...]) -> _Settings:
        """``own``, and from these settings what it leaves out."""
        said = {key: value for key in _INHERITED if (value := getattr(own, key)) is not None}
        return _Settings(self.keys.model_copy(update=said), rules)


_OWN = ("name", "extends", "rules")
_INHERITED = tuple(key for key in QuantSettings.model_fields if key not in _OWN)
_NOTHING = _Settings(QuantSettings())


@dataclass
class _Expansion:
    specs: Sequence[tuple[int, QuantSpec]]
    locations: Locations
    faulty: frozenset[str]
    problems: list[Problem] = field(default_factory=list)
    _done: dict[str, _Settings | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name: dict[str, tuple[int, QuantSpec]] = {}
        for index, spec in self.specs:
            self._by_name.setdefault(spec.name, (index, spec))

    def quant(self, index: int, spec: QuantSpec) -> Quant | None:
        settings = self._settings(index, spec)
        return self._finish(spec.name, settings, ("quants", index)) if settings else None

    def sweep(self, index: int, sweep: SweepSpec) -> list[Quant]:
        where = ("sweep", index)
        parent = self._parent(sweep.extends, where, ())
        if parent is None or not self._template_is_sound(sweep, index):
            return []
        own = self._rules(sweep.rules, where, f"sweep {index + 1}")
        settings = parent.fill(sweep, (*own, *parent.rules))
        quants: list[Quant] = []
        for chosen in itertools.product(*sweep.over.values()):
            choice = dict(zip(sweep.over, chosen, strict=True))
            name = "-".join(chosen)
            if sweep.name is not None:
                by_axis = {**{str(i): t for i, t in enumerate(chosen, 1)}, **choice}
                parts = enumerate(_PLACEHOLDER.split(sweep.name))
                name = "".join(by_axis[part] if i % 2 else part for i, part in parts)
            if not re.fullmatch(NAME_PATTERN, name):
                at = self.locations.at(*where, "name")
                self.problems.append(at.problem(f"the sweep makes a bad name: `{name[:80]}`"))
                return quants
            swept = tuple(
                Rule(selector, type_name, name, self.locations.key_at(*where, "over", selector))
                for selector, type_name in choice.items()
                if selector != "type"
            )
            rules = (*swept, *settings.rules)
            quant = self._finish(name, settings, where, rules, choice.get("type"))
            if quant is None:
                return quants
            quants.append(quant)
        return quants

    def _settings(
        self, index: int, spec: QuantSpec, path: tuple[str, ...] = ()
    ) -> _Settings | None:
        """Inherited and own settings together; None, reported once, if ``extends`` is wrong."""
        if self._by_name[spec.name][0] == index and spec.name in self._done:
            return self._done[spec.name]
        where = ("quants", index)
        parent = self._parent(spec.extends, where, (*path, spec.name))
        settings = None
        if parent is not None:
            known = sorted({rule.selector for rule in parent.rules})
            for i, selector in enumerate(spec.drop_rules):
                if selector not in known:
                    at = self.locations.at(*where, "drop_rules", i)
                    message = f"`drop_rules` names no inherited rule: `{selector}`"
                    hint = f"inherited are: {', '.join(known)}" if known else None
                    self.problems.append(at.problem(message, hint=hint))
            own = self._rules(spec.rules, where, spec.name)
            inherited = (r for r in parent.rules if r.selector not in spec.drop_rules)
            settings = parent.fill(spec, (*own, *inherited))
        if self._by_name[spec.name][0] == index:
            self._done[spec.name] = settings
        return settings

    def _parent(
        self, name: str | None, where: tuple[str, int], path: tuple[str, ...]
    ) -> _Settings | None:
        if name is None:
            return _NOTHING
        at = self.locations.at(*where, "extends")
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            self.problems.append(at.problem(f"`extends` goes in a circle: {cycle}"))
            return None
        if name not in self._by_name and name in self.faulty:
            return None
        if name not in self._by_name:
            close = get_close_matches(name, list(self._by_name), n=1)
            hint = f"did you mean `{close[0]}`?" if close else None
            self.problems.append(at.problem(f"`extends` names no quant: `{name}`", hint=hint))
            return None
        return self._settings(*self._by_name[name], path)

    def _rules(
        self, specs: Sequence[RuleSpec], where: tuple[str, int], owner: str
    ) -> tuple[Rule, ...]:
        return tuple(
            Rule(r.selector, r.type, owner, self.locations.at(*where, "rules", i, "selector"))
            for i, r in enumerate(specs)
        )

    def _finish(
        self,
        name: str,
        settings: _Settings,
        where: tuple[str, int],
        rules: tuple[Rule, ...] | None = None,
        base_type: str | None = None,
    ) -> Quant | None:
        """The quant ``name``; ``rules`` and ``base_type`` are those of a sweep's axes."""
        at = self.locations.at(*where, "name")
        keys, rules = settings.keys, settings.rules if rules is None else rules
        base_type = base_type or keys.type
        if base_type is None:
            hint = "add `type:`, the base type of llama-quantize, such as Q4_K_M"
            self.problems.append(at.problem(f"`{name}` has no base type", hint=hint))
            return None
        return Quant(
            name=name,
            ftype=base_type,
            rules=rules,
            mixture=keys.mixture or ("pure" if rules else "engine"),
            mixture_stated=keys.mixture is not None,
            use_imatrix=keys.imatrix is not False,
            tensors_from=keys.tensors_from.to_tensors_from() if keys.tensors_from else None,
            experts=keys.experts or (),
            prune_layers=keys.prune_layers or (),
            split=keys.split.to_limit() if keys.split else None,
            part=keys.part,
            at=at,
        )

    def _template_is_sound(self, sweep: SweepSpec, index: int) -> bool:
        if sweep.name is None:
            return True
        at = self.locations.at("sweep", index, "name")
        known = {*sweep.over, *(str(i + 1) for i in range(len(sweep.over)))}
        used = set(_PLACEHOLDER.findall(sweep.name))
        for word in sorted(used - known):
            hint = f"known here: {', '.join('{' + k + '}' for k in sorted(known))}"
            self.problems.append(at.problem(f"no axis `{{{word}}}` in this sweep", hint=hint))
        axes = list(sweep.over)
        for number, axis in enumerate(axes, 1):
            if len(sweep.over[axis]) > 1 and not used & {axis, str(number)} and used <= known:
                message = f"the names do not tell `{axis}` apart: add {{{number}}}"
                self.problems.append(at.problem(message))
                return False
        return used <= known
