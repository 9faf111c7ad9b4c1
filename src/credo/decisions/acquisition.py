"""Which rows to label next: what a row's outcome would tell, and the rows that tell most."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from credo.algorithm import stream
from credo.diagnose.novelty import class_entropy, class_probabilities, is_of_classes
from credo.precision import double
from credo.predict.conditional_information import conditional_information
from credo.predict.predictive import Predictive
from credo.status import CredoError


def bald(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The information that a row's outcome gives of the parameters, in nats (Houlsby, Huszár, Ghahramani & Lengyel
    2011; MacKay 1992). It passes over rows whose outcome is noise, however uncertain. By draws, as ``MonteCarlo()`` has
    them, it is noisy: of a Gaussian posterior ``predict(x, Quadrature())`` gives it to many digits.
    """
    return _of_one(predictive, "bald", "mutual_information")


def expected_information_gain(
    predictive: Predictive, chosen: Sequence[int] | Int[np.ndarray, " n"] = ()
) -> Float[np.ndarray, " M"]:
    """The information that a row's outcome gives of the parameters beside those of the rows ``chosen``, in nats
    (Lindley 1956): ``bald`` where none is. ``choose(predictive, expected_information_gain, n)`` takes the row of the
    greatest, then that of the greatest beside it, and so on: rows that tell most together (BatchBALD, Kirsch, van
    Amersfoort & Gal 2019), where gains are exact no less than 1 − 1/e of what the best n of them would (Krause &
    Guestrin 2005). The gains add up to what the n tell.

    ``chosen``: indices of rows of x. ``Linearised()`` takes the Gaussian that a Laplace approximation would be next:
    exact of normal outcomes with known noise; of others an approximation, to a tenth where logits have sds of one, and
    too high where outputs vary by more: two to three times where logits have sds of 8, or the log of a rate or of a
    learned noise one of 2, and by more beyond. By draws of the parameters any posterior and outcome will do, and the
    outcomes of rows chosen leave ever fewer of them: a warning says where too few are left to tell. Raises CredoError
    for outcomes by name, and where rows have no outcome of their own.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda p, x: dist.Normal(x @ p["w"], 1.0))
    >>> posterior = credo.fit(model.given(np.zeros((1, 2)), np.zeros(1)), credo.Laplace(), progress=False)
    >>> predictive = posterior.predict(np.array([[3.0, 0.0], [2.9, 0.0], [0.0, 2.0]]), credo.Linearised())
    >>> credo.decisions.choose(predictive, credo.decisions.bald, 2)
    array([0, 1])
    >>> credo.decisions.choose(predictive, credo.decisions.expected_information_gain, 2)
    array([0, 2])
    >>> credo.decisions.expected_information_gain(predictive, chosen=[0]).round(2)
    array([0.32, 0.31, 0.8 ])
    """
    try:
        given = np.asarray(chosen)
    except ValueError:  # rows of several lengths
        given = np.asarray(None)
    if not given.size:
        return _of_one(predictive, "expected_information_gain", "mutual_information")
    outcome = _outcomes("expected_information_gain", predictive)
    if isinstance(outcome, dict):
        raise CredoError(_several("expected_information_gain", outcome))
    size = predictive.num_rows
    if size is None:
        raise CredoError("The model takes no inputs, so that there are no rows to choose.")
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer) or np.min(given) < 0 or np.max(given) >= size:
        raise CredoError(f"chosen holds indices of rows, whole numbers from 0 to {size - 1}; got {chosen!r}.")
    with double():
        return conditional_information(predictive, outcome, given, stream(predictive._key, 6))


def predictive_variance(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The variance of the outcome, summed over its columns: of the noise too, which no label removes."""
    return _of_one(predictive, "predictive_variance", "variance")


def entropy(predictive: Predictive) -> Float[np.ndarray, " M"]:
    """The entropy of a row's class in nats, uncertainty sampling (Lewis & Gale 1994): of the noise too."""
    if not is_of_classes(predictive):
        raise CredoError("entropy is of classes, and the outcome is none: use bald or predictive_variance.")
    return class_entropy(class_probabilities(predictive))


def choose(
    predictive: Predictive, acquisition: Callable[..., Float[np.ndarray, " M"]] = bald, n: int = 1
) -> np.ndarray:
    """The ``n`` rows of greatest acquisition, (n,), the greatest first; of equals the earlier.

    ``acquisition``: a function of a predictive that gives one number a row. Each row is judged alone, so that many
    rows chosen at once may all tell the same: choose few, label them and fit again, or give an acquisition that has an
    argument ``chosen``, as ``expected_information_gain`` has: it is asked n times, each time with the rows chosen
    before, after those that it has by default (``functools.partial(expected_information_gain, chosen=sent)``), which
    are not chosen again. Raises CredoError where ``n`` is no number of rows or an acquisition is NaN.

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
    earlier = _chosen_before(acquisition)
    values = _values(predictive, acquisition, earlier)
    rest = np.setdiff1d(np.arange(len(values)), [] if earlier is None else earlier)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= len(rest):
        raise CredoError(f"n is a number of rows from 1 to {len(rest)}; got {n!r}.")
    if earlier is None:
        return np.argsort(-values, kind="stable")[:n]
    found = [rest[np.argmax(values[rest])]]
    while len(found) < n:
        values, rest = _values(predictive, acquisition, [*earlier, *found]), np.setdiff1d(rest, found)
        found.append(rest[np.argmax(values[rest])])
    return np.asarray(found)


def _values(predictive: Predictive, acquisition: Callable, chosen: Sequence[int] | None) -> np.ndarray:
    given = {} if chosen is None else {"chosen": np.asarray(chosen, int)}
    found = acquisition(predictive, **given)
    try:
        values = np.asarray(found, float)  # with a sign: the order is that of its negatives
    except (TypeError, ValueError) as error:
        raise CredoError(
            f"An acquisition is one number a row, (M,); this one gives {type(found).__name__}: {found!s:.80}."
        ) from error
    if values.ndim != 1:
        raise CredoError(f"An acquisition is one number a row, (M,); this one has shape {values.shape}.")
    if predictive.num_rows not in (None, len(values)):
        raise CredoError(
            f"An acquisition is one number a row, and this one gives {len(values)} for {predictive.num_rows} rows of "
            "x. Give choose the predictive of the rows to choose from, and no others."
        )
    if np.isnan(values).any():
        raise CredoError(f"The acquisition of row {int(np.argmax(np.isnan(values)))} is NaN: no row can be chosen.")
    return values


def _chosen_before(acquisition: Callable) -> list[int] | None:
    """The rows that its argument ``chosen`` has by default, as of a partial; None where it has no such argument."""
    try:
        found = inspect.signature(acquisition).parameters.get("chosen")
    except ValueError:  # of what is not written in Python
        return None
    if found is None or found.kind is inspect.Parameter.POSITIONAL_ONLY:
        return None
    earlier: Any = found.default
    return [] if earlier is inspect.Parameter.empty or earlier is None else np.ravel(earlier).tolist()


def _of_one(predictive: Predictive, name: str, figure: str) -> np.ndarray:
    _outcomes(name, predictive)
    values = getattr(predictive, figure)
    if isinstance(values, dict):
        raise CredoError(_several(name, values))
    values = np.asarray(values)
    return values.reshape(len(values), -1).sum(axis=1)


def _outcomes(name: str, predictive: Predictive):
    if not isinstance(predictive, Predictive):
        raise CredoError(f"{name} takes a predictive, posterior.predict(x); got {type(predictive).__name__}.")
    return predictive._outcomes


def _several(name: str, outcomes: dict) -> str:
    return (
        f"{name} is of one outcome a row, and the predictive has {', '.join(outcomes)}: give choose a function of the "
        "predictive that combines them."
    )
