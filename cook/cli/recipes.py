"""``cook recipes``: list, show and check them, print the schema, import and export."""

from __future__ import annotations

from pathlib import Path

from cook.cli import options as opt
from cook.output import Output, right
from cook.recipe.foreign import Format

_OUTPUT = opt.option("--output", "Write it here, not to stdout.", "-o", metavar="FILE")
_MODEL = opt.option("--model", "GGUF or tensor list (.tsv) of the model.", metavar="FILE")


def import_(
    out: Output,
    file: Path = opt.argument("FILE", "Script, .recipe or list of rules."),
    output: Path | None = _OUTPUT,
    model: Path | None = _MODEL,
    type: str | None = opt.option(
        "--type", "Base type, where the file names none.", metavar="TYPE"
    ),
    kind: Format | None = opt.option("--from", "What the file is, where its name does not tell."),
    force: bool = opt.FORCE,
) -> None:
    """Turn a quantization script or a list of rules into a recipe.

    Reads bash scripts that run llama-quantize (never runs them) and their custom="..." block, the
    shell blocks of a model card (README.md), .recipe files of the GGUF-Tool-Suite, --custom-q
    text and --tensor-type-file lists. With --model, rules that say what a tensor group says
    become that group.

    Examples:
      cook recipes import make-quant-IQ1_KT.sh -o ling.yaml --model Ling-flash-BF16.gguf
      cook recipes import GLM-4.7-Flash.recipe --type Q6_K
    """
    from cook.recipe.foreign.importing import import_recipe

    _refuse_existing(output, force)
    result = import_recipe(file, format=kind, type=type, model=model, to=output)
    out.emit(
        {
            "kind": result.format,
            "output": output,
            "recipe": result.loaded.recipe,
            "text": result.text,
            "warnings": result.warnings,
        }
    )
    for problem in result.warnings:
        out.say(str(problem))
    _write(out, result.text, output)


def export(
    out: Output,
    recipe: Path = opt.RECIPE,
    format: Format = opt.option(
        "--format", "What to write.", "-f", show_default=False, default=...
    ),
    quant: str | None = opt.option(
        "--quant", "Which quant, where there are several.", metavar="NAME"
    ),
    output: Path | None = _OUTPUT,
    model: Path | None = _MODEL,
    force: bool = opt.FORCE,
) -> None:
    """Write a quant of a recipe as the engines' own tools read it.

    custom-q is the argument of ik_llama.cpp's --custom-q, tensor-type-file that of llama.cpp's
    option, recipe a .recipe of the GGUF-Tool-Suite, script a bash script. With --model the
    rules name the model's tensors; without, they are the recipe's patterns.

    Examples:
      cook recipes export ling-flash-iq1kt --quant IQ1_KT --format script -o make-quant.sh
      cook recipes export mine.yaml --format tensor-type-file --model model-bf16.gguf
    """
    from cook.recipe.check import read_tensors
    from cook.recipe.foreign.exporting import export_quant
    from cook.recipe.load import load_recipe

    _refuse_existing(output, force)
    tensors = read_tensors(model) if model is not None else None
    result = export_quant(load_recipe(recipe, unsafe_args=True), quant, format, tensors)
    out.emit(
        {
            "format": format.value,
            "engine": result.flavour,
            "output": output,
            "text": result.text,
            "notes": result.notes,
        }
    )
    for note in result.notes:
        out.say(f"note: {note}")
    _write(out, result.text, output)


def _refuse_existing(output: Path | None, force: bool) -> None:
    from cook.errors import InputError

    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists", hint="--force replaces it")
    if output is not None and not output.absolute().parent.is_dir():
        raise InputError(f"{output}: there is no folder {output.parent}")


def _write(out: Output, text: str, output: Path | None) -> None:
    from cook.files import atomic_write

    if output is None:
        out.block(text)
        return
    with atomic_write(output.absolute()) as file:
        file.write(text.encode())
    out.say(f"wrote {output}")


def ls(out: Output) -> None:
    """List the recipes that come with cook.

    Examples:
      cook recipes ls
    """
    from cook.recipe.load import load_recipe, shipped_recipes

    documents: list[dict[str, object]] = []
    rows = []
    for path in shipped_recipes().values():
        loaded = load_recipe(path)
        recipe, text = loaded.recipe, loaded.recipe.description
        documents.append(
            {
                "name": path.stem,
                "path": path,
                "engine": list(recipe.engine),
                "quants": [quant.name for quant in loaded.quants],
                "description": text,
            }
        )
        first_line = (text or "").strip().partition("\n")[0]
        rows.append((path.stem, ", ".join(recipe.engine) or None, len(loaded.quants), first_line))
    out.emit({"recipes": documents})
    out.table(rows, ["recipe", "engine", "quants", "description"])


def show(
    out: Output,
    recipe: Path = opt.RECIPE,
    resolve: bool = opt.flag(
        "--resolved", "Write out what is inherited, swept or a default: every quant, every setting."
    ),
) -> None:
    """Print a recipe, as it is or resolved; with --json also what it expands to.

    A shipped recipe is printed without its name: a copy is called after its file, and so are its
    records. The first line names the schema, so that editors check what you type. A resolved
    recipe is a recipe itself, with absolute paths and every default.

    Examples:
      cook recipes show ling-flash-iq1kt
      cook recipes show ling-flash-iq1kt --resolved
      cook recipes show ling-flash-iq1kt > mine.yaml
    """
    from cook.recipe.load import load_recipe, resolved_text, text_to_keep

    loaded = load_recipe(recipe, unsafe_args=True)  # nothing runs
    out.emit(
        {
            "path": loaded.path,
            "recipe": loaded.recipe,
            "quants": [
                {
                    "name": quant.name,
                    "type": quant.ftype,
                    "part": quant.part,
                    "mixture": quant.mixture,
                    "imatrix": quant.use_imatrix,
                    "tensors_from": quant.tensors_from,
                    "experts": quant.experts,
                    "prune_layers": quant.prune_layers,
                    "split": quant.split.as_typed if quant.split else None,
                    "rules": [{rule.selector: rule.type} for rule in quant.rules],
                }
                for quant in loaded.quants
            ],
        }
    )
    out.block(resolved_text(loaded) if resolve else text_to_keep(loaded))


def check(
    out: Output,
    recipe: Path = opt.RECIPE,
    engine: str | None = opt.ENGINE,
    tensors: Path | None = opt.option(
        "--tensors", "GGUF or tensor list (.tsv) to check the rules against.", metavar="FILE"
    ),
    strict: bool = opt.STRICT,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
) -> None:
    """Find every fault of a recipe, with file, line and column.

    What `cook plan` refuses is refused here, too, as far as it can be known: nothing is fetched,
    and an engine that is not there is left out. With a model's tensors, what each rule hits, rows
    that do not divide, and the exact size of every quant, also where a text is not there yet.

    Examples:
      cook recipes check my-recipe.yaml
      cook recipes check ling-flash-iq1kt --engine ik --tensors Ling-flash-BF16.gguf
    """
    from cook import units
    from cook.errors import RecipeError
    from cook.job.prepare import engines_at_hand, require_plannable
    from cook.recipe.check import check_recipe
    from cook.recipe.load import load_recipe

    loaded = load_recipe(recipe, unsafe_args=allow_unsafe_args)
    asked = (engine,) if engine is not None else ()
    engines = engines_at_hand(loaded, asked)
    one = engines[0] if len(engines) == 1 else None
    result = check_recipe(loaded, one, tensors, strict=strict)
    found = result.problems
    wrong = any(p.severity == "error" for p in found)
    if wrong and not result.quants:
        raise RecipeError(found)
    if not wrong:
        require_plannable(loaded, asked, strict=strict)
    out.emit(result)
    if not wrong:
        for problem in found:
            out.say(str(problem))
    if result.quants:
        rows = []
        for quant in result.quants:
            types = ", ".join(f"{count} {name}" for name, count in quant.tensors_of_type.items())
            size = units.size(quant.size_bytes)
            rows.append((quant.name, size, units.number(quant.bpw, ".4f"), types))
        out.table(rows, ["quant", *right("size", "bpw"), "tensors"])
        for reason in dict.fromkeys(q.size_absent for q in result.quants if q.size_absent):
            names = ", ".join(q.name for q in result.quants if q.size_absent == reason)
            out.say(f"no size of {names}: {reason}")
    if wrong:
        raise RecipeError(found)  # sizes do not depend on a text that is not there
    warnings = units.plural(len(found), "warning")
    out.say(f"{result.path}: no errors on {result.flavour}, {warnings}")


def schema(out: Output) -> None:
    """Print the JSON Schema of recipes, for editors.

    Examples:
      cook recipes schema > recipe.schema.json
    """
    import json

    from cook.recipe.load import schema_file

    text = schema_file().read_text("utf-8")
    out.emit(json.loads(text))
    out.block(text.rstrip("\n"))
