"""Outcomes that were not observed: left out, or drawn given the parameters.

Where the likelihood factorises over rows, p(θ, y_mis | y_obs) = p(θ | y_obs) Π_j p(y_j | x_j, θ), since integrating a
missing outcome out leaves a factor of one. So the parameters' posterior is that of the observed rows alone, and a draw
of the parameters gives a draw of the missing outcomes, exactly, discrete ones too. A row of several outcomes that
lacks one is left out with all of them: that posterior is of fewer data. All this assumes that, given x, whether
an outcome is missing says nothing about its value (missing at random: Rubin, 1976). A joint likelihood has no factor
to leave out, so there the question is refused.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import sound
from credo.model.check import explained
from credo.model.data import MASKED, NO_ROWS, Inputs, are_missing, as_array, column, column_name, is_leaf
from credo.model.structure import somewhere
from credo.model.target import log_prob_rows
from credo.precision import abstract, double
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.model.model import Model
    from credo.model.target import Target

NAME = "y_missing"  # of the imputed outcomes among the draws


class Missing(eqx.Module):
    """The rows without an outcome, by number and with their inputs, (K, …).

    ``is_imputed``: y is drawn there. ``num_partly``: how many of them have a part of it, which is left out too.
    """

    rows: np.ndarray
    x: Inputs
    is_imputed: bool = eqx.field(static=True)
    num_partly: int = eqx.field(static=True, default=0)

    @property
    def names(self) -> tuple[str, ...]:
        """What is reported of them."""
        return (NAME,) if self.is_imputed else ()

    def sentence(self, num_observed: int) -> str:
        """What a verdict says of them."""
        number, total = len(self.rows), len(self.rows) + num_observed
        done = f"draws of them are {NAME!r}" if self.is_imputed else "they were left out"
        partly = f" ({self.num_partly} of them a part of it, which was left out too)" if self.num_partly else ""
        lacking = "lack an outcome" if self.num_partly else "have no outcome"
        return (
            f"{number} of {total} rows {lacking}{partly}: {done}. This is right where, given x, whether y is missing "
            "says nothing about its value."
        )


def check_request(model: "Model", missing: str | None) -> None:
    if missing not in (None, "drop", "impute"):
        raise CredoError(f"missing is 'drop', 'impute' or None; got {missing!r}.")
    names = (*(leaf.name for leaf in model.structure.leaves), *model.derived)
    if missing == "impute" and NAME in names:
        raise CredoError(f"The imputed outcomes are called {NAME!r}, and the model has that name already: rename it.")


def observed_rows(y, missing: str) -> tuple[Any, np.ndarray]:
    """(y with NaN for everything missing, (N,) which rows have an outcome)."""
    if missing == "impute" and isinstance(y, dict):
        raise CredoError(
            f"missing='impute' knows one outcome, and y is a dict of them: use missing='drop', or {MASKED}."
        )
    y = jax.tree_util.tree_map_with_path(lambda path, leaf: _with_nan(column_name(path, "y"), leaf), y, is_leaf=is_leaf)
    if not all(map(len, jax.tree.leaves(y))) or not jax.tree.leaves(y):
        raise CredoError(NO_ROWS)
    masks = _masks(y)
    if len({len(mask) for mask in masks}) > 1:
        raise CredoError(f"The outcomes differ in length ({', '.join(str(len(m)) for m in masks)} rows): give as many.")
    mask = np.concatenate(masks, axis=1)
    lacking = np.asarray(mask.any(axis=1))
    partly = np.flatnonzero(lacking & ~mask.all(axis=1))
    if missing == "impute" and partly.size:
        raise CredoError(
            f"Row {partly[0]} of y has some entries and lacks others, and missing='impute' draws whole rows: use "
            f"missing='drop', or {MASKED}. Of a joint law, as a MultivariateNormal, a mask takes rows whole: make the "
            "missing entries parameters of the prior, and put them in."
        )
    if lacking.all():
        raise CredoError(f"All {len(lacking)} outcomes are missing: call given() without data for the prior alone.")
    return y, ~lacking


def num_partly(y) -> int:
    """How many rows of outcomes, NaN for what is missing, lack a part of them alone."""
    mask = np.concatenate(_masks(y), axis=1)
    return int(np.sum(mask.any(axis=1) & ~mask.all(axis=1)))


def _masks(y) -> list[np.ndarray]:
    """(N, columns) of each outcome: whether it is missing."""
    return [np.isnan(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(y)]


def _with_nan(name: str, leaf) -> np.ndarray:
    values = as_array(name, leaf)
    if not values.ndim:
        raise CredoError(f"{name} is a single number: data have one row a datum; give an array.")
    holes = are_missing(values)
    filled = np.where(holes, 0, values) if holes.any() else values
    checked = column(name, filled)  # everything else that may be wrong with it
    return np.where(holes, np.nan, checked)


def select(tree, rows: np.ndarray):
    """The given rows of each array."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def whole(y):
    """Outcomes that are all whole numbers as integers, which NaN beside them had made floats."""
    return jax.tree.map(lambda leaf: leaf.astype(np.int64) if np.all(leaf == np.floor(leaf)) else leaf, y)


def check_factors(target: "Target", x: Inputs, observed: np.ndarray) -> None:
    """CredoError unless leaving rows out leaves the factors of the others as they were. ``x``: all rows."""
    if target.num_terms != target.size:
        raise CredoError(
            "The likelihood is joint (one factor for all rows), so a missing outcome cannot be left out of it: drop "
            "the rows yourself if the likelihood of the others is their marginal, or return one factor a row."
        )
    first = np.where(observed, np.cumsum(observed) - 1, 0)  # an observed outcome stands in for a missing one
    y = select(target.y, first)
    u = somewhere(target.dim)
    with double(), explained("The likelihood", target.structure, x):
        with_all = np.asarray(_terms(target, u, x, y))[observed]
        alone = np.asarray(_terms(target, u, target.x, target.y))
    if not np.allclose(with_all, alone, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise CredoError(
            "The likelihood of a row changes with the rows beside it (a mean over x or a lag inside the model?), so "
            "leaving rows out would change it: compute that beforehand and give it as a column of x."
        )


@sound
def _terms(target: "Target", u, x, y):
    likelihood: Any = target.model.likelihood
    return log_prob_rows(likelihood(target.model.prior.constrain(target.structure.unravel(u)), x), y)


def impute(target: "Target", u, key):
    """The missing outcomes (K, …) drawn from p(y | x, θ) at a flat position."""
    assert target.missing is not None
    shape = (len(target.missing.rows), *jnp.shape(target.y)[1:])
    params = target.model.prior.constrain(target.structure.unravel(u))
    like = abstract(shape, target.y.dtype)
    return target.model.draw_outcome(key, params, target.missing.x, like)
