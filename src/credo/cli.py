"""The command ``credo``."""

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from credo.status import CredoError

app = typer.Typer(
    name="credo",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

REFUSED, STOPPED = 2, 130  # exit codes: a request that cannot be answered, and Ctrl-C


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Bayesian machine learning: several approximations of one posterior, and which of them to believe."""
    if version:
        from credo._version import __version__

        print(f"credo {__version__}")


@app.command()
def compare(
    table: Annotated[str, typer.Argument(help="A CSV file, or a bundled table such as breast_cancer.")],
    target: Annotated[str | None, typer.Option(help="The outcome column of a CSV file.")] = None,
    formula: Annotated[str | None, typer.Option(help='Such as "y ~ x1 + C(g) + (1 + x1 | county)".')] = None,
    family: Annotated[str | None, typer.Option(help="gaussian, bernoulli, categorical or poisson.")] = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: exact, map, laplace, importance, advi, fullrank, hmc, nuts.")
    ] = "laplace,advi,nuts",
    exposure: Annotated[str | None, typer.Option(help="The column of time, people or area behind counts.")] = None,
    missing: Annotated[str | None, typer.Option(help="drop: leave out rows with missing values.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, the posteriors and the tables.")] = Path(
        "credo-out"
    ),
    held_out: Annotated[float, typer.Option(help="Share of the rows kept for scoring.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of every method.")] = 0,
) -> None:
    """Fit one regression model by several methods and say which answer to believe."""
    with _ending_well():
        from credo.reporting.main_job import Request, compare_table

        _use_compilation_cache()
        names = tuple(methods.split(","))
        compare_table(Request(table, target, family, formula, exposure, missing, names, out, held_out, seed))


@app.command()
def predict(
    posterior: Annotated[Path, typer.Argument(help="What credo compare wrote: its folder, or one .credo file in it.")],
    new: Annotated[str, typer.Argument(help="A CSV file with the columns of the fit.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    missing: Annotated[
        str | None, typer.Option(help="drop: predict only the rows without missing values, with their row numbers.")
    ] = None,
) -> None:
    """Predict new rows: by the trusted method of a comparison, or by the posterior that is named."""
    with _ending_well():
        from credo.reporting.prediction import predict_table

        _use_compilation_cache()
        predict_table(posterior, new, out, missing=missing)


def _use_compilation_cache() -> None:
    """Programs compiled by an earlier run of the command are reused.

    JAX writes them in place: one that another command is writing at this moment is compiled anew, without a word.
    """
    import jax

    folder = Path(typer.get_app_dir("credo")) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


@contextlib.contextmanager
def _ending_well():
    """A request that cannot be answered ends in one sentence and exit code 2, Ctrl-C in one and 130."""
    try:
        yield
    except CredoError as error:
        _leave(str(error), REFUSED)
    except KeyboardInterrupt as stopped:
        _leave(str(stopped) or "Stopped; no file was left half written.", STOPPED)


def main() -> None:
    """Entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a console that is not UTF-8: a mark is lost, and no work
    try:
        code = app(prog_name="credo", standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _leave_usage(error)
    except SystemExit as leaving:
        if leaving.code != STOPPED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED)  # threads of the compiler may still run, and Python's own end crashes under them
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _leave_usage(error) -> None:
    """An option that does not exist, or a value of the wrong type; with no arguments at all, the help."""
    if "NoArgs" in type(error).__name__:
        error.show()
        sys.exit(REFUSED)
    message = " ".join(error.format_message().split())
    where = error.ctx.command_path if getattr(error, "ctx", None) else "credo"
    _leave(f"{message.rstrip('.')}: see {where} --help.", REFUSED)


def _leave(sentence: str, code: int) -> None:
    print(f"credo: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
