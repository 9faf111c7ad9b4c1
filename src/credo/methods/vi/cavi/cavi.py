"""Coordinate ascent variational inference for a model of one's own: factors by name, each with its update.

The loop is that of sweeps.py. As a method of ``credo.fit`` the factors are distributions of the model's parameters, and
what the user derived by hand is held against the model itself (answer.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from credo.algorithm import Options, stream
from credo.algorithm import as_key as key_of
from credo.arguments import as_key
from credo.methods.settings import check_settings
from credo.methods.vi.cavi.answer import answer
from credo.methods.vi.cavi.sweeps import Ascent, Bound, Factors, Update, ascend, best_of
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double, to_numpy
from credo.status import CredoError


@dataclass(frozen=True)
class CAVI:
    """Mean-field variational Bayes: ``updates`` (factor name -> update) and ``elbo``, both derived by the user.

    ``updates[name](factors, data)`` returns the factor that maximises the ELBO, the others held: a numpyro
    distribution, or any pytree of arrays. ``elbo(factors, data)`` is the exact bound in nats, constants included. They
    run in float64, once a sweep in the order given. ``start``: the factors that are read before their first update, or
    a callable of (JAX key, data) that draws them; ``num_starts`` of these are climbed and the highest ELBO kept.
    ``tolerance``: nats that further sweeps may gain, or, if that is more, ``relative_tolerance`` times |ELBO|.

    ``credo.fit(target, CAVI(…))`` gives a ``Posterior`` of independent factors. Then ``data`` are the target's
    ``Rows(x, y, weights)``, and each parameter of the model is a factor, a distribution of the parameter's shape and
    support; other factors are latent variables. ``num_draws`` hold the ELBO against the model, and find k̂. ``info``
    has ``elbo_path``, ``num_sweeps``, the ``factors``, the ELBOs of all ``restarts``, and ``evidence_upper`` where
    draws can tell one. ``CAVI(…).ascend(data)`` runs the same sweeps where there is no ``Model``: an ``Ascent``.

    Raises CredoError where the ELBO falls from one sweep to the next, which no right update does, naming the update.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> def mean(q, y):  # y_i ~ N(mean, 1/precision), flat prior on the mean
    ...     return dist.Normal(y.mean(), (len(y) * q["precision"].mean) ** -0.5)
    >>> def precision(q, y):  # Gamma(1, 1) prior
    ...     return dist.Gamma(1 + len(y) / 2, 1 + 0.5 * np.sum((y - q["mean"].loc) ** 2 + q["mean"].variance))
    >>> def elbo(q, y):  # right after the update of the precision, up to a constant
    ...     return np.log(q["mean"].scale) - q["precision"].concentration * np.log(q["precision"].rate)
    >>> cavi = credo.vi.cavi.CAVI({"mean": mean, "precision": precision}, elbo, {"precision": dist.Gamma(1.0, 1.0)})
    >>> float(cavi.ascend(np.array([1.0, 2.0, 4.0])).factors["mean"].loc.round(4))
    2.3333
    """

    updates: Mapping[str, Update]
    elbo: Bound
    start: Mapping[str, Any] | Callable = field(default_factory=dict)
    tolerance: float = field(default=1e-6, metadata={"at_least": 0.0})
    relative_tolerance: float = field(default=1e-10, metadata={"at_least": 0.0})
    max_sweeps: int = field(default=10_000, metadata={"at_least": 1})
    num_starts: int = field(default=1, metadata={"at_least": 1})
    num_draws: int = field(default=2_000, metadata={"at_least": 30})

    def __post_init__(self):
        if not (isinstance(self.updates, Mapping) and self.updates):
            raise CredoError(f"updates is a dict, factor name -> update(factors, data); got {self.updates!r}.")
        for name, function in (*self.updates.items(), ("elbo", self.elbo)):
            if not callable(function):
                what = "elbo" if name == "elbo" else f"updates[{name!r}]"
                raise CredoError(f"{what} is {function!r}: give a function of (factors, data).")
        if self.num_starts > 1 and not callable(self.start):
            raise CredoError(
                f"num_starts={self.num_starts} with one start would climb the same hill again: give start as a "
                "function of (key, data) that draws the factors."
            )

    def ascend(self, data: Any = None, *, key=0) -> Ascent:
        """The factors at the highest ELBO found, for ``data`` as the updates take them. ``key``: int or JAX key."""
        check_settings(self)
        return self._ascend(data, as_key(key), np.inf)

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target, deadline = target.flat(), options.deadline()
        with double():  # the user's NumPy code has no other precision, and a rise is told from rounding in it
            data = target.cast(np.float64).rows()
            ascent = self._ascend(data, stream(key, 0), deadline, self._warm(start, target))
        return answer(
            ascent, ascent.factors, target, key=key, num_draws=self.num_draws, options=options.until(deadline)
        )

    def _ascend(self, data: Any, key, deadline: float, warm: Factors | None = None) -> Ascent:
        def one(i: int) -> Ascent:
            start = self.start
            if warm is not None:
                begin: Any = warm
            else:
                begin = start(key_of(stream(key, i)), data) if callable(start) else start
            if not isinstance(begin, Mapping):
                raise CredoError(f"start gave {begin!r}: it gives a dict, factor name -> factor.")
            return ascend(
                self.updates,
                self.elbo,
                begin,
                data,
                tolerance=self.tolerance,
                relative_tolerance=self.relative_tolerance,
                max_sweeps=self.max_sweeps,
                deadline=deadline,
            )

        with double():
            ascent = best_of(one(i) for i in range(1 if warm is not None else self.num_starts))
            return ascent._replace(factors=to_numpy(ascent.factors))

    def _warm(self, start, target: Target) -> Factors | None:
        """The factors of a posterior that is a product as well; positions are no factors."""
        if isinstance(start, Posterior) and isinstance(start.kind, Product):
            given = {} if callable(self.start) else self.start
            return {**given, **start.info.get("factors", {}), **start.kind.distributions}
        if start is None or target.model.start is not None:
            return None
        raise CredoError(
            "CAVI starts from factors and not from a position: give them as CAVI(start={name: factor}), or start= a "
            "posterior that CAVI fitted."
        )
