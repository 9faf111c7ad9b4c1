"""Credo's main job: one table of data, several approximations of the same posterior, a verdict on each."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from credo.checkpoint import write_text_atomically
from credo.fitting import fit
from credo.methods.exact import Exact
from credo.methods.laplace import Laplace
from credo.methods.mcmc import HMC, NUTS
from credo.methods.optimise import MAP
from credo.methods.particles.importance import Importance
from credo.methods.vi import ADVI, FullRank, MeanField
from credo.models.regression import Standardiser, regression
from credo.models.table import Table, read_table
from credo.posterior.posterior import Posterior
from credo.reporting.comparison import compare
from credo.reporting.report import write_report
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


def compare_table(
    source: str,
    target: str | None,
    family: str | None,
    methods: Sequence[str],
    out: Path,
    held_out: float,
    seed: int,
):
    """Fit ``source`` by ``methods``, print the comparison and write it with posteriors and report into ``out``."""
    from rich.console import Console

    console = Console(highlight=False)
    methods = _check_methods(methods)
    if not 0 <= held_out < 1:
        raise CredoError(f"held_out={held_out} is no share of the rows: give a number from 0 to below 1.")
    if seed < 0:
        raise CredoError(f"seed={seed} is negative: give a whole number from 0.")
    _check_writable(out)
    data = read_table(source, target, family)
    train, test = split(len(data.y), held_out, seed)
    if len(train) == 0:
        raise CredoError(f"held_out={held_out} of {len(data.y)} rows leaves none to fit: hold out a smaller share.")
    standardise = Standardiser(data.x[train])
    model = regression(data.family, data.x.shape[1], data.y)
    fit_target = model.given(standardise(data.x[train]), data.y[train])
    scored = (standardise(data.x[test]), data.y[test]) if len(test) else None
    console.print(_describe(data, len(train), len(test), fit_target.dim), soft_wrap=True)
    posteriors: dict[str, Posterior] = {}
    for name in methods:
        start = time.perf_counter()
        try:
            with console.status(f"{name} …"):
                posteriors[name] = fit(fit_target, METHODS[name](posteriors), key=seed)
        except CredoError as error:  # what the other methods found is kept
            if len(methods) == 1:
                raise
            console.print(f"{name:<11}         left out: {error}", soft_wrap=True)
            continue
        console.print(f"{name:<11}{time.perf_counter() - start:6.1f} s   {posteriors[name].verdict.status}")
    if not posteriors:
        raise CredoError("None of the methods could fit this model, for the reasons above: choose others.")
    console.print()
    table = compare(posteriors, held_out=scored)
    settings = {"table": data.name, "target": data.target, "family": data.family, "seed": str(seed)}
    write_results(out, data, posteriors, table, scored, settings)
    console.print(
        f"\nWrote {out / 'report.html'}, comparison.csv, verdicts.json and {len(posteriors)} posteriors.",
        soft_wrap=True,
    )
    return table


def write_results(
    out: Path, data: Table, posteriors: Mapping[str, Posterior], table, scored, settings: Mapping[str, str]
) -> None:
    """comparison.csv, verdicts.json, one file a posterior, report.html: each appears whole or not at all."""
    write_text_atomically(out / "comparison.csv", table.to_csv(index_label="method"))
    verdicts = {n: {"status": p.verdict.status, "sentences": p.verdict.sentences} for n, p in posteriors.items()}
    write_text_atomically(out / "verdicts.json", json.dumps(verdicts, indent=2, ensure_ascii=False))
    for name, posterior in posteriors.items():
        posterior.save(out / f"{name}.credo")
    labels = scalar_labels(data)
    title = f"{data.name}: {data.target} by {data.x.shape[1]} features"
    write_report(out / "report.html", title, posteriors, table, labels=labels, held_out=scored, settings=settings)


def scalar_labels(data: Table) -> dict[str, str]:
    """``coefficients[3]`` -> the column's name (and the class)."""
    if data.family != "categorical":
        return {f"coefficients[{i}]": column for i, column in enumerate(data.columns)}
    return {
        f"coefficients[{i},{k}]": f"{column}: {label}"
        for i, column in enumerate(data.columns)
        for k, label in enumerate(data.classes)
    }


def split(num_rows: int, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled row numbers: (train, test)."""
    order = np.random.default_rng(seed).permutation(num_rows)
    cut = num_rows - round(held_out * num_rows)
    return np.sort(order[:cut]), np.sort(order[cut:])


def _check_methods(methods: Sequence[str]) -> list[str]:
    methods = list(dict.fromkeys(name.strip() for name in methods if name.strip()))
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


def _check_writable(out: Path) -> None:
    """Said before computing, not after."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise CredoError(
            f"The output folder {str(out)!r} cannot be written ({error.strerror}): choose another."
        ) from error


def _describe(data: Table, num_train: int, num_test: int, dim: int) -> str:
    classes = f" ({', '.join(data.classes[:6])})" if data.classes else ""
    return (
        f"{data.name}: {data.target}{classes}, {data.family} regression on {data.x.shape[1]} features, "
        f"{dim} parameters; {num_train} rows to fit, {num_test} held out."
    )
