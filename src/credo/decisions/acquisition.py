"""Which rows to label next: what a row's outcome would tell, and the rows that tell most."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from credo.diagnose.novelty import class_entropy, class_probabilities, is_of_classes
from credo.predict.predictive import Predictive
from credo.status import CredoError


def bald(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The information that a row's outcome gives of the parameters, in nats (Houlsby, Huszár, Ghahramani & Lengyel
    2011; MacKay 1992). It passes over rows whose outcome is noise, however uncertain. By draws, as ``MonteCarlo()`` has
    them, it is noisy: of a Gaussian posterior ``predict(x, Quadrature())`` gives it to many digits.
    """
    return _of_one(predictive, "bald", "mutual_information")


def predictive_variance(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The variance of the outcome, summed over its columns: of the noise too, which no label removes."""
    return _of_one(predictive, "predictive_variance", "variance")


def entropy(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The entropy of a row's class in nats, uncertainty sampling (Lewis & Gale 1994): of the noise too."""
    if not is_of_classes(predictive):
        raise CredoError("entropy is of classes, and the outcome is none: use bald or predictive_variance.")
    return class_entropy(class_probabilities(predictive))


def choose(
    predictive: Predictive, acquisition: Callable[[Predictive], Float[np.ndarray, " M"]] = bald, n: int = 1
) -> np.ndarray:
    """The ``n`` rows of greatest acquisition, (n,), the greatest first; of equals the earlier.

    ``acquisition``: a function of a predictive that gives one number a row. Each row is judged alone, so that many
    rows chosen at once may all tell the same: choose few, label them and fit again. Raises CredoError where ``n`` is
    no number of rows or an acquisition is NaN.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    >>> posterior = credo.fit(model.given(np.ones(4), np.zeros(4)), credo.Laplace())
    >>> predictive = posterior.predict(np.array([0.0, -2.0, 1.0]), credo.Linearised())
    >>> credo.decisions.choose(predictive, credo.decisions.bald, 2)
    array([1, 2])
    """
    if not isinstance(predictive, Predictive):
        raise CredoError(
            f"choose() takes a predictive, posterior.predict(x), and the rows of x are chosen from; got "
            f"{type(predictive).__name__}."
        )
    if not callable(acquisition):
        raise CredoError(f"acquisition is a function such as credo.decisions.bald; got {acquisition!r} (say n=…).")
    values = np.asarray(acquisition(predictive), float)  # with a sign: the order is that of its negatives
    if values.ndim != 1:
        raise CredoError(f"An acquisition is one number a row, (M,); this one has shape {values.shape}.")
    if predictive.num_rows not in (None, len(values)):
        raise CredoError(
            f"An acquisition is one number a row, and this one gives {len(values)} for {predictive.num_rows} rows of "
            "x. Give choose the predictive of the rows to choose from, and no others."
        )
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= len(values):
        raise CredoError(f"n is a number of rows from 1 to {len(values)}; got {n!r}.")
    if np.isnan(values).any():
        raise CredoError(f"The acquisition of row {int(np.argmax(np.isnan(values)))} is NaN: no row can be chosen.")
    return np.argsort(-values, kind="stable")[:n]


def _of_one(predictive: Predictive, name: str, figure: str) -> np.ndarray:
    if not isinstance(predictive, Predictive):
        raise CredoError(f"{name} takes a predictive, posterior.predict(x); got {type(predictive).__name__}.")
    values = getattr(predictive, figure)
    if isinstance(values, dict):
        raise CredoError(
            f"{name} is of one outcome a row, and the predictive has {', '.join(values)}: give choose a function of "
            "the predictive that combines them."
        )
    values = np.asarray(values)
    return values.reshape(len(values), -1).sum(axis=1)
