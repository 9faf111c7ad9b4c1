"""The command ``credo``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from credo.status import CredoError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Bayesian machine learning: several approximations of one posterior, and which of them to believe."""


@app.command()
def compare(
    table: Annotated[str, typer.Argument(help="A CSV file, or a bundled table such as breast_cancer.")],
    target: Annotated[str | None, typer.Option(help="The outcome column of a CSV file.")] = None,
    family: Annotated[str | None, typer.Option(help="gaussian, bernoulli, categorical or poisson.")] = None,
    methods: Annotated[str, typer.Option(help="Comma-separated methods.")] = "laplace,advi,nuts",
    out: Annotated[Path, typer.Option(help="Folder for the table, the posteriors and report.html.")] = Path(
        "credo-out"
    ),
    held_out: Annotated[float, typer.Option(help="Share of the rows kept for scoring.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of every method.")] = 0,
) -> None:
    """Fit one regression model by several methods and say which answer to believe."""
    from credo.reporting.main_job import compare_table

    _use_compilation_cache()
    compare_table(table, target, family, methods.split(","), out, held_out, seed)


def _use_compilation_cache() -> None:
    """Programs compiled by an earlier run of the command are reused."""
    import jax

    folder = Path(typer.get_app_dir("credo")) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def main() -> None:
    """Entry point: a request that cannot be answered ends in one sentence and exit code 2."""
    try:
        app()
    except CredoError as error:
        print(f"credo: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
