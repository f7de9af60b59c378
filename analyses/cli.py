"""The `interp` command. Heavy imports wait until a command runs, so that `interp --help` answers at once.

interp demo
interp report smollm2 --out runs/smollm2
interp heads smollm2 --json
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.errors import DivergedError, InputError

app = typer.Typer(
    name="interp",
    help="How does a transformer get its answers? Measure it, with controls, and write a report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Out = Annotated[Path | None, typer.Option(help="Folder to write to; a run that was stopped goes on there.")]
Device = Annotated[str | None, typer.Option(help="Where to run, such as cpu; an accelerator where there is one.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; float32 when not given.")]
Seed = Annotated[int, typer.Option(help="All random choices come from it.")]
Quick = Annotated[bool, typer.Option("--quick", help="A quarter of the sequences: wider intervals, sooner.")]
First = Annotated[
    str, typer.Option("--bos", help="What stands first: auto, none, bos (the tokenizer's), or a token id.")
]
Shard = Annotated[str, typer.Option(help="i/n: every n-th model from the i-th on; shards can share a folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the models and estimate the time, on one of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to; a run that was stopped goes on there.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    device: Device = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Train a small copying model, then report on it and on SmolLM2-135M (about 5 minutes on two cores)."""
    from analyses.demo import run_demo
    from analyses.show import print_results

    print_results(run_demo(out, seed=seed, device=device, quick=quick), as_json=as_json)


@app.command()
def report(
    models: Annotated[list[str], typer.Argument(help="Hub names, folders, .gguf files, training runs, or smollm2.")],
    analyses: Annotated[
        str | None,
        typer.Option(help="Which questions, separated by commas; all but bridge, rules and trees when not given."),
    ] = None,
    out: Out = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of hub names.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
    bos: First = "auto",
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Measure models and write one offline HTML report and one Parquet table."""
    from analyses.report_models import report_models
    from analyses.show import print_results

    names = tuple(part.strip() for part in analyses.split(",") if part.strip()) if analyses is not None else None
    folder = report_models(
        models,
        analyses=names,
        out=out,
        revision=revision,
        device=device,
        dtype=dtype,
        seed=seed,
        quick=quick,
        bos=_parse_bos(bos),
    )
    print_results(folder, as_json=as_json)


@app.command()
def heads(
    model: Annotated[str, typer.Argument(help="Hub name, folder, .gguf file, training run, or smollm2.")],
    kind: Annotated[str, typer.Option(help="induction, previous_token, duplicate_token or copying.")] = "induction",
    definition: Annotated[str | None, typer.Option(help="raw, sink_removed or prefix_matching.")] = None,
    top: Annotated[int, typer.Option(help="How many heads to list.")] = 10,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub name.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
    bos: First = "auto",
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """List a model's strongest heads beside their control."""
    from analyses.show import print_heads

    print_heads(
        model,
        kind=kind,
        definition=definition,
        top=top,
        revision=revision,
        device=device,
        dtype=dtype,
        seed=seed,
        n_sequences=12 if quick else 50,
        bos=_parse_bos(bos),
        as_json=as_json,
    )


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, such as copying or anchor.")],
    out: Out = None,
    steps: Annotated[int | None, typer.Option(help="Number of updates; the recipe's when not given.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Initial weights have std = d_in ** -gamma.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's decoupled decay.")] = None,
    seed: Seed = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train a small model by a recipe; a run that was stopped goes on where it was."""
    from analyses.show import print_training
    from analyses.train_recipe import train_recipe

    run = train_recipe(recipe, out=out, steps=steps, gamma=gamma, weight_decay=weight_decay, seed=seed, device=device)
    print_training(run, as_json=as_json)


@app.command()
def solutions(
    recipe: Annotated[str | None, typer.Option(help="A grid by name: small, paper_b or paper_c.")] = None,
    gamma: Annotated[str | None, typer.Option(help="Exponents of the initialisation, separated by commas.")] = None,
    weight_decay: Annotated[str | None, typer.Option(help="AdamW's decays, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each setting; the recipe's, or 3.")] = None,
    depth: Annotated[str | None, typer.Option(help="Numbers of layers, separated by commas; 2 when not given.")] = None,
    design: Annotated[
        str | None, typer.Option(help="dropped, altered, or both with a comma; dropped when not given.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each model; 1,500 when not given.")] = None,
    out: Out = None,
    shard: Shard = "1/1",
    dry_run: DryRun = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train a grid of small models and say which of them reason, use a symmetry, or memorise."""
    from analyses.show import print_estimate, print_results
    from analyses.solutions.command import solve

    done = solve(
        recipe=recipe,
        gamma=gamma,
        weight_decay=weight_decay,
        seeds=seeds,
        depth=depth,
        design=design,
        steps=steps,
        out=out,
        shard=shard,
        device=device,
        dry_run=dry_run,
    )
    if isinstance(done, Path):
        print_results(done, as_json=as_json)
    else:
        print_estimate(done, as_json=as_json)


@app.command()
def dynamics(
    recipe: Annotated[str, typer.Option(help="Which models: small, pools or published.")] = "small",
    seeds: Annotated[int | None, typer.Option(help="Seeds of each setting; the recipe's when not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each model; the recipe's when not given.")] = None,
    out: Out = None,
    shard: Shard = "1/1",
    dry_run: DryRun = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train small models to copy and say when they come to do it by a rule, and what comes with it."""
    from analyses.copying_dynamics.run import DYNAMICS
    from analyses.show import print_estimate, print_results

    done = DYNAMICS.follow(recipe, seeds=seeds, steps=steps, out=out, shard=shard, device=device, dry_run=dry_run)
    if isinstance(done, Path):
        print_results(done, as_json=as_json)
    else:
        print_estimate(done, as_json=as_json)


@app.command()
def grokking(
    recipe: Annotated[str, typer.Option(help="Which models: small, post_norm, tense or paper.")] = "small",
    seeds: Annotated[int | None, typer.Option(help="Seeds of each depth; the recipe's when not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each model; the recipe's when not given.")] = None,
    out: Out = None,
    shard: Shard = "1/1",
    dry_run: DryRun = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train small models on grammar tasks and say when they come to the tree's rule, and what comes with it."""
    from analyses.show import print_estimate, print_results
    from analyses.structural_grokking.run import GROKKING

    done = GROKKING.follow(recipe, seeds=seeds, steps=steps, out=out, shard=shard, device=device, dry_run=dry_run)
    if isinstance(done, Path):
        print_results(done, as_json=as_json)
    else:
        print_estimate(done, as_json=as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """List what can be named, with size and licence."""
    from analyses.show import print_models

    print_models(as_json=as_json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A folder that `interp report` or `interp demo` wrote.")],
    as_json: Json = False,
) -> None:
    """Print the headline numbers of a finished run, with their controls."""
    from analyses.show import print_results

    print_results(folder, as_json=as_json)


def _parse_bos(text: str) -> Any:
    return int(text) if text.isdigit() else text


def main() -> None:
    """Entry point: a user's mistake is one sentence on stderr and exit code 2, never a traceback."""
    try:
        app()
    except (InputError, DivergedError) as error:
        _fail(error, code=2 if isinstance(error, InputError) else 1)
    except ValueError as error:
        from tasks.task import TaskError

        if not isinstance(error, TaskError):
            raise
        _fail(error, code=2)


def _fail(error: Exception, *, code: int) -> Any:
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error)}))
    print(f"interp: {error}", file=sys.stderr)
    raise SystemExit(code)
