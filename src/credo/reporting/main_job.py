"""Credo's main job: one table of data, several approximations of the same posterior, a verdict on each."""

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from credo.fitting import fit
from credo.methods.exact import Exact
from credo.methods.laplace import Laplace
from credo.methods.mcmc import HMC, NUTS
from credo.methods.optimise import MAP
from credo.methods.particles.importance import Importance
from credo.methods.vi import ADVI, FullRank, MeanField
from credo.model.target import Target
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.posterior.posterior import Posterior
from credo.reporting.comparison import tabulate
from credo.reporting.console import Terminal, show_comparison
from credo.reporting.results import Results
from credo.reporting.scores import predict_held_out
from credo.status import CredoError

METHODS = {
    "exact": lambda fitted: Exact(),
    "map": lambda fitted: MAP(),
    "laplace": lambda fitted: Laplace(),
    "importance": lambda fitted: Importance(proposal=_laplace(fitted)),
    "advi": lambda fitted: ADVI(family=MeanField()),
    "fullrank": lambda fitted: ADVI(family=FullRank()),
    "hmc": lambda fitted: HMC(),
    "nuts": lambda fitted: NUTS(),
}


class Request(NamedTuple):
    """What ``credo compare`` was asked."""

    source: str
    target: str | None
    family: str | None
    formula: str | None
    exposure: str | None
    missing: str | None
    methods: tuple[str, ...]
    out: Path
    held_out: float
    seed: int

    def as_command(self) -> str:
        """The command line that asks the same."""
        named = {
            "--target": self.target,
            "--formula": self.formula,
            "--family": self.family,
            "--exposure": self.exposure,
            "--missing": self.missing,
            "--methods": ",".join(self.methods),
            "--held-out": repr(self.held_out),
            "--seed": str(self.seed),
            "--out": str(self.out),
        }
        words = [word for option, value in named.items() if value is not None for word in (option, value)]
        return shlex.join(["credo", "compare", self.source, *words])


def compare_table(request: Request):
    """Fit the table by the methods, print the comparison and write it with posteriors and report: the table of
    ``credo.compare``. CredoError, a sentence, for what cannot be done."""
    methods = _check_methods(request.methods)
    if not 0 <= request.held_out < 1:
        raise CredoError(f"held_out={request.held_out} is no share of the rows: give a number from 0 to below 1.")
    if request.seed < 0:
        raise CredoError(f"seed={request.seed} is negative: give a whole number from 0.")
    made = check_folder(request.out)
    try:
        prepared, test = _prepare(request)
    except BaseException:
        made.remove()
        raise
    terminal = Terminal()
    for line in (*prepared.table.notes, prepared.describe()):
        terminal.say(line)
    terminal.say(f"{len(prepared.rows):,} rows to fit, {len(test):,} held out.")
    terminal.say_some("Priors: ", prepared.priors)
    results = Results(request.out, prepared, request.as_command())
    removed = results.write_table(METHODS, formula=request.formula, exposure=request.exposure)
    if removed:
        terminal.say(f"Removed from {request.out} what is of another table: {', '.join(removed)}.")
    target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y[prepared.rows])
    posteriors = _fit_all(target, methods, request.seed, terminal, results)
    y = prepared.y[test] if len(test) else None
    x = prepared.inputs(test) if len(test) else None
    predictives = {name: predict_held_out(p, x, y) for name, p in posteriors.items()} if y is not None else {}
    compared = tabulate(posteriors, predictives, y)
    results.write(posteriors, compared, predictives, y)
    terminal.say("")
    show_comparison(compared, posteriors)
    count = f"{len(posteriors)} posterior{'' if len(posteriors) == 1 else 's'}"
    terminal.say(f"\nWrote {request.out / 'report.html'}, with the tables and {count} beside it.")
    return compared


def _prepare(request: Request):
    table = read_table(
        request.source,
        request.target,
        request.family,
        formula=request.formula,
        missing=request.missing,
        exposure=request.exposure,
    )
    train, test = split(len(table.y), request.held_out, request.seed)
    if len(train) == 0:
        raise CredoError(
            f"held_out={request.held_out} of {len(table.y)} rows leaves none to fit: hold out a smaller share."
        )
    return prepare(table, train), test


def _fit_all(
    target: Target, methods: Sequence[str], seed: int, terminal: Terminal, results: Results
) -> dict[str, Posterior]:
    """Every method that can; each posterior is on the disk before the next begins."""
    posteriors: dict[str, Posterior] = {}
    written: list[str] = []
    try:
        for name in methods:
            terminal.begin(f"{name} …")
            start = time.perf_counter()
            try:
                posteriors[name] = fit(target, METHODS[name](posteriors), key=seed)
            except CredoError as error:  # what the other methods found is kept
                if len(methods) == 1:
                    raise
                terminal.end(f"{name:<11}         left out: {error}")
                continue
            results.write_posterior(name, posteriors[name])
            written.append(name)
            terminal.end(f"{name:<11}{time.perf_counter() - start:6.1f} s   {posteriors[name].verdict.status}")
    except KeyboardInterrupt:
        terminal.end("")
        raise KeyboardInterrupt(results.kept(written)) from None
    if not posteriors:
        raise CredoError("None of the methods could fit this model, for the reasons above: choose others.")
    return posteriors


def split(num_rows: int, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled row numbers: (train, test)."""
    order = np.random.default_rng(seed).permutation(num_rows)
    cut = num_rows - round(held_out * num_rows)
    return np.sort(order[:cut]), np.sort(order[cut:])


def _check_methods(methods: Sequence[str]) -> list[str]:
    methods = list(dict.fromkeys(name.strip().lower() for name in methods if name.strip()))
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        named = f"{unknown[0]!r} is no method" if unknown else "No method is named"
        raise CredoError(f"{named}: choose from {', '.join(METHODS)}.")
    if "importance" in methods and "laplace" not in methods[: methods.index("importance")]:
        raise CredoError("importance corrects laplace: name laplace before it.")
    return methods


def _laplace(fitted: Mapping[str, Posterior]) -> Posterior:
    if "laplace" not in fitted:
        raise CredoError("importance corrects laplace, which could not be fitted.")
    return fitted["laplace"]


class MadeFolders(NamedTuple):
    """The folders that did not exist before."""

    paths: tuple[Path, ...]

    def remove(self) -> None:
        """Leave things as they were, where nothing was written."""
        for path in self.paths:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def check_folder(out: Path) -> MadeFolders:
    """Make the folder and write in it for a moment: said before computing, not after."""
    missing = [path for path in (out, *out.parents) if not path.exists()]
    if out.exists() and not out.is_dir():
        raise CredoError(f"The output folder {str(out)!r} cannot be written: a file has that name. Choose another.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise CredoError(
            f"The output folder {str(out)!r} cannot be written ({error.strerror}): choose another."
        ) from error
    return MadeFolders(tuple(missing))
