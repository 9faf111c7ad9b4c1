"""Generalised linear models of standardised features, with weakly informative priors scaled to the data.

Coefficients act on features of mean 0 and sd 1 (or, for features of two values, on their difference). The likelihoods
are module-level, so that every fit of a family with the same shapes reuses one compiled program.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from credo.model.model import Model
from credo.models.design import Scaling
from credo.models.family import Family
from credo.models.groups import GroupTerm
from credo.models.informed import is_informed
from credo.models.table import Table
from credo.status import CredoError

PRIOR_SD = 2.5  # of a coefficient in link units per sd of its feature (Gelman, Jakulin, Pittau & Su, 2008)


@dataclass(frozen=True)
class Prepared:
    """A table made ready to be fitted: its model, and the inputs that the model takes.

    ``rows``: the row numbers of the fit, from which alone the columns are scaled and the priors set. ``y``: the
    outcomes of *all* rows of the table. ``labels``: scalar name -> words. ``priors``: a sentence a prior.

    >>> import credo
    >>> prepared = credo.prepare(credo.read_table("iris"), range(150))
    >>> prepared.describe()
    'iris: target (setosa, versicolor, virginica), categorical regression on 4 features, 15 parameters.'
    >>> target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y[prepared.rows])
    """

    table: Table
    rows: np.ndarray
    model: Model
    labels: dict[str, str]
    priors: list[str]
    scaling: Scaling
    group_scalings: tuple[Scaling, ...] = ()

    @property
    def family(self) -> Family:
        return self.table.family

    @property
    def y(self) -> np.ndarray:
        return self.table.y

    def inputs(self, rows) -> Any:
        """What ``model.given`` and ``posterior.predict`` take as x, for rows of the table or new ones.

        ``rows``: row numbers (M,) of the table, or a DataFrame (or dict of columns) with the table's columns.
        Raises CredoError for a column that is missing or holds what the fit did not know.
        """
        raw = self.table.inputs(rows)
        inputs: dict[str, Any] = {"features": self.scaling(raw.x)}  # by name: a bare array was never scaled
        if raw.offset is not None:
            inputs["offset"] = raw.offset
        for group, scaling, (levels, design) in zip(self.table.groups, self.group_scalings, raw.groups, strict=True):
            inputs[group.key] = levels
            inputs[f"{group.key} design"] = group.with_intercept(scaling(design))
        return inputs

    def describe(self) -> str:
        """One line: table, outcome, family, size."""
        table = self.table
        classes = f" ({', '.join(table.classes[:6])}{', …' * (len(table.classes) > 6)})" if table.classes else ""
        groups = "".join(f", {group.label} as groups" for group in table.groups)
        offset = " and an offset" if table.offset else ""
        return (
            f"{table.name}: {table.target}{classes}, {table.family} regression on "
            f"{len(table.columns)} feature{'s' * (len(table.columns) != 1)}"
            f"{groups}{offset}, {self.model.structure.dim} parameters."
        )


def prepare(table: Table, rows) -> Prepared:
    """The model of ``table``, with columns scaled by, and priors set from, the ``rows`` (row numbers) of the fit.

    Priors: a coefficient has sd 2.5 link units per sd of its column (of two-valued columns: between the values); the
    unit is 1 for logits and log rates, sd(y) for gaussian; without an intercept the root mean square of the outcome on
    that scale, and of the column. Group effects: see ``credo.models.groups``.
    Raises CredoError where there are no rows.

    >>> import credo
    >>> prepared = credo.prepare(credo.read_table("diabetes"), range(400))
    >>> target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y[prepared.rows])
    """
    if not isinstance(table, Table):
        raise CredoError(f"prepare() takes what read_table() returns; got {table!r:.60}: give credo.read_table(…).")
    rows = table.row_numbers(rows)
    if rows.size == 0:
        raise CredoError("There are no rows to fit: hold out fewer.")
    if table.offset and table.family == "categorical":
        raise CredoError(
            "An offset of a categorical outcome adds the same to every class, which changes nothing: leave it out, or "
            "model one class against the rest as bernoulli."
        )
    if table.groups and table.family == "categorical":
        raise CredoError(
            "Group effects of a categorical outcome are not built: model one class against the rest as bernoulli, or "
            "take the group as a column."
        )
    raw = table.inputs(rows)
    scaling = Scaling.of(table.x, rows, table.design.has_intercept)
    unit, centre = _unit_and_centre(table.family, table.y[rows], raw.offset)
    terms, group_scalings, levels = [], [], []
    for group, (names, design) in zip(table.groups, raw.groups, strict=True):
        scale = Scaling.of(group.all_rows, rows, group.has_intercept)
        columns = group.with_intercept(scale(design))
        is_centred = is_informed(table.family, table.y[rows], raw.offset, scaling(raw.x), names, columns)
        group_scalings.append(scale)
        terms.append(replace(group.term, is_centred=is_centred))
        levels.append(np.unique(names))
    # without an intercept, coefficients and groups carry the level of the outcome too
    level = unit if table.design.has_intercept else float(np.hypot(unit, centre))
    prior = _prior(table, unit, centre, level)
    for term, known in zip(terms, levels, strict=True):
        prior |= term.prior(len(known), level)
    model = Model(
        prior,
        Additive(table.family, tuple(terms), raw.offset is not None),
        derived={name: effects for term in terms for name, effects in term.derived.items()}
        | ({"contrasts": contrasts} if table.family == "categorical" and table.columns else {}),
        groups={term.key: term.parameters[-1] for term in terms},
    )
    labels = _labels(table)
    for term, known in zip(terms, levels, strict=True):
        labels |= term.labels(known)
    priors = _sentences(table, scaling, unit, centre, level)
    priors += [line for term in terms for line in term.sentences(level)]
    return Prepared(table, rows, model, labels, priors, scaling, tuple(group_scalings))


def linear_prior(
    family: Family,
    num_features: int,
    unit: float,
    centre: float,
    num_classes: int | None = None,
    scale: float = PRIOR_SD,
    level: float | None = None,
) -> dict[str, dist.Distribution]:
    """Intercept, coefficients and noise; ``scale``: the sd of a coefficient in units of ``level``, or else ``unit``."""
    if family == "categorical":
        assert num_classes is not None
        return {
            "intercept": dist.Normal(0.0, PRIOR_SD).expand([num_classes]),
            "coefficients": dist.Normal(0.0, scale).expand([num_features, num_classes]),
        }
    width = PRIOR_SD if family == "gaussian" else 2 * PRIOR_SD
    prior: dict[str, dist.Distribution] = {
        "intercept": dist.Normal(centre, width * unit),
        "coefficients": dist.Normal(0.0, scale * (level or unit)).expand([num_features]),
    }
    if family == "gaussian":
        prior["noise_sd"] = dist.Exponential(1.0 / unit)
    return prior


def _unit_and_centre(family: Family, y: np.ndarray, offset: np.ndarray | None) -> tuple[float, float]:
    """(the sd of the outcome on the link's scale, where the intercept's prior is centred)."""
    if family == "gaussian":
        rest = y if offset is None else y - offset
        size = float(np.max(np.abs(rest))) or 1.0  # squares of 1e200 and of 1e-200 are no numbers
        return float(np.std(rest / size) * size) or 1.0, float(np.mean(rest / size) * size)
    if family == "poisson":
        exposure = float(len(y) if offset is None else np.sum(np.exp(offset)))
        return 1.0, float(np.log((np.sum(y) + 0.5) / exposure))
    return 1.0, 0.0


def _prior(table: Table, unit: float, centre: float, level: float) -> dict[str, dist.Distribution]:
    prior = linear_prior(table.family, len(table.columns), unit, centre, len(table.classes) or None, level=level)
    if not table.design.has_intercept:
        del prior["intercept"]
    if not table.columns:
        del prior["coefficients"]
    return prior


def _labels(table: Table) -> dict[str, str]:
    if table.family != "categorical":
        return {f"coefficients[{i}]": column for i, column in enumerate(table.columns)}
    return {f"intercept[{k}]": f"intercept: {label}" for k, label in enumerate(table.classes)} | {
        f"{name}[{i},{k}]": f"{column}: {label}{note}"
        for name, note in (("contrasts", ""), ("coefficients", " (up to a constant)"))
        for i, column in enumerate(table.columns)
        for k, label in enumerate(table.classes)
    }


def _sentences(table: Table, scaling: Scaling, unit: float, centre: float, level: float) -> list[str]:
    lines, spread = [], "sd" if table.design.has_intercept else "root mean square"
    if table.design.has_intercept:
        width = (PRIOR_SD if table.family in ("gaussian", "categorical") else 2 * PRIOR_SD) * unit
        lines.append(f"intercept (at the mean of every column): Normal({centre:.3g}, {width:.3g})")
    for column, scale, is_binary in zip(table.columns, scaling.scale, scaling.is_binary, strict=True):
        per = "between its two values" if is_binary else f"per {spread} of the column ({scale:.3g})"
        lines.append(f"coefficient of {column}: Normal(0, {PRIOR_SD * level:.3g}) {per}")
    if table.family == "gaussian":
        lines.append(f"noise sd: Exponential with mean {unit:.3g}, the sd of {table.target}")
    return lines


# likelihoods ----------------------------------------------------------------------------------------------------


def linear_predictor(params, x):
    return params["intercept"] + x["features"] @ params["coefficients"]


def contrasts(coefficients):
    """Of classes: each against their average, (D, K). The softmax knows coefficients up to a constant a row."""
    return coefficients - jnp.mean(coefficients, axis=-1, keepdims=True)


def outcome(family: Family, eta, params):
    """p(y | linear predictor)."""
    match family:
        case "gaussian":
            return dist.Normal(eta, params["noise_sd"])
        case "bernoulli":
            return dist.BernoulliLogits(eta)
        case "poisson":
            return dist.Poisson(jnp.exp(eta))
        case "categorical":
            return dist.CategoricalLogits(eta)


def gaussian(params, x):
    return outcome("gaussian", linear_predictor(params, x), params)


def bernoulli(params, x):
    return outcome("bernoulli", linear_predictor(params, x), params)


def poisson(params, x):
    return outcome("poisson", linear_predictor(params, x), params)


def categorical(params, x):
    return outcome("categorical", linear_predictor(params, x), params)


LIKELIHOODS = {"gaussian": gaussian, "bernoulli": bernoulli, "categorical": categorical, "poisson": poisson}


@dataclass(frozen=True)
class Additive:
    """The likelihood of fixed terms, group effects and an offset, whichever there are. Equal if its parts are."""

    family: Family
    groups: tuple[GroupTerm, ...]
    has_offset: bool

    def __call__(self, params, x):
        num_rows = x["features"].shape[0]
        eta = jnp.zeros((num_rows, 1) if self.family == "categorical" else num_rows) + params.get("intercept", 0.0)
        if "coefficients" in params:
            eta = eta + x["features"] @ params["coefficients"]
        if self.has_offset:
            eta = eta + (x["offset"][:, None] if self.family == "categorical" else x["offset"])
        for term in self.groups:
            eta = eta + term.predictor(params, x)
        return outcome(self.family, eta, params)
