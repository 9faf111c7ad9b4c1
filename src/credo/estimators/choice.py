"""The prior's scale, and the noise of a regression, by how rows are predicted that were held out.

A network at its mode has no honest noise: the mode of weights and noise together explains the rows away where weights
are many (the noise of 48 rows of a linear law came out so small that the mean log score of others was −90,000), and
leaves them for noise where the prior is narrow. So a fifth of the rows is held out; of the prior scales the least is
taken whose fit predicts them as well as the best, within a standard error; and of a constant noise, that of the fit or
the root mean square by which it missed them. The fit to all rows follows.
"""

from dataclasses import replace

import numpy as np

from credo.estimators.base import by_name, fit_padded, padding
from credo.estimators.networks import NetworkRecipe
from credo.fitting import Method
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.undefined import UndefinedPredictionError

SCALES = 1.0, 3.0, 10.0
HELD_OUT = 5  # one row of so many
FEWEST = 30  # rows: below, too few are held out to tell anything


def chosen(
    recipe: NetworkRecipe, x: np.ndarray, y: np.ndarray, weights: np.ndarray, method: Method, key: int
) -> NetworkRecipe:
    """``recipe`` with the scale, and the noise, that predict best."""
    size = len(y)
    if size < FEWEST:
        return recipe
    held = np.random.default_rng(recipe.seed).permutation(size)[: size // HELD_OUT]
    kept = weights.copy()
    kept[held] = 0  # of the shape of all rows: one compiled program for each choice and the fit that follows
    filled = np.concatenate([x[held], np.zeros((padding(len(held)), x.shape[1]))])
    outcomes = np.concatenate([y[held], np.zeros(padding(len(held)), y.dtype)])

    def losses(candidate: NetworkRecipe) -> tuple[np.ndarray, np.ndarray | None]:
        """Of the rows held out: minus the log score, and the squared error of a constant noise; infinite where there
        is no prediction."""
        posterior, _ = fit_padded(candidate, x, y, kept, method, key)
        try:
            predictive = posterior.predict(by_name(filled), MonteCarlo(), key=key)
            surprise = -predictive.log_prob(outcomes)[: len(held)]
            error = None if candidate.family != "constant" else (predictive.mean[: len(held)] - y[held]) ** 2
        except UndefinedPredictionError:
            surprise = error = np.full(len(held), np.inf)
        return _known(surprise), None if error is None else _known(error)

    candidates = [replace(recipe, prior_scale=scale) for scale in SCALES]
    found = [losses(candidate) for candidate in candidates]
    counts = weights[held]
    if recipe.family != "constant":
        return candidates[_smallest([surprise for surprise, _ in found], counts)]
    place = _smallest([error for _, error in found if error is not None], counts)
    surprise, error = found[place]
    assert error is not None
    noise = float(np.sqrt(np.average(error, weights=counts)))
    if not (np.isfinite(noise) and noise > 0):
        return candidates[place]
    known = replace(candidates[place], noise=noise)
    better = np.average(losses(known)[0], weights=counts) < np.average(surprise, weights=counts)
    return known if better else candidates[place]


def _known(loss: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(loss), np.inf, loss)


def _smallest(losses: list[np.ndarray], weights: np.ndarray) -> int:
    """The first of the candidates whose mean loss is within a standard error, that of the difference, of the least."""
    best = losses[int(np.argmin([np.average(loss, weights=weights) for loss in losses]))]
    for place, loss in enumerate(losses):
        with np.errstate(invalid="ignore"):
            more = np.where(loss == best, 0.0, loss - best)
            mean = np.average(more, weights=weights)
            error = np.sqrt(np.sum((weights * (more - mean)) ** 2)) / np.sum(weights)
        if mean <= error:
            return place
    return 0
