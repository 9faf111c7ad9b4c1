"""Natural outputs of a network whose head is a user's: what ``apply`` returns, row by row, beside the head's own
parameters in unconstrained coordinates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.model.distributions import rowwise, transform_to
from credo.model.user_head import UserHead
from credo.nn.heads import Head
from credo.nn.priors import WEIGHTS
from credo.precision import abstract
from credo.predict.outcome import over


@dataclass(frozen=True)
class NetworkHead(UserHead):
    """``structure`` and ``shapes``: of the outputs of one row; ``own``: the coordinates of the head's parameters."""

    apply: Callable
    head: Head
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    own: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, apply: Callable, head: Head, weights, x) -> "NetworkHead":
        """At inputs ``x``; ``weights`` and these may be abstract."""
        leaves, structure = jax.tree.flatten(jax.eval_shape(apply, weights, x))
        own = tuple((name, transform_to(d).inverse_shape(d.shape())) for name, d in head.priors().items())
        return cls(apply, head, structure, tuple(leaf.shape[1:] for leaf in leaves), own)

    @property
    def parameters(self):
        return tuple(name for name, _ in self.own)

    def natural(self, distribution, params, x):
        leaves = jax.tree.leaves(self.apply(params[WEIGHTS], x))
        size, priors = len(leaves[0]), self.head.priors()
        own = [transform_to(priors[name])._inverse(params[name]) for name, _ in self.own]
        of_all = [jnp.broadcast_to(jnp.ravel(each), (size, jnp.size(each))) for each in own]
        return jnp.concatenate([*(jnp.reshape(leaf, (size, -1)) for leaf in leaves), *of_all], axis=1)

    def join(self, z, distribution):
        sizes = [int(np.prod(shape)) for shape in (*self.shapes, *(shape for _, shape in self.own))]
        parts = jnp.split(z, np.cumsum(sizes)[:-1].tolist(), axis=1)
        outputs = [part.reshape(len(z), *shape) for part, shape in zip(parts, self.shapes, strict=False)]
        priors, own = self.head.priors(), {}
        for part, (name, shape) in zip(parts[len(outputs) :], self.own, strict=True):
            own[name] = transform_to(priors[name])(part[0].reshape(shape))
        found = self.head.outcome(jax.tree.unflatten(self.structure, outputs), own)
        return over(lambda d: _of_rows(d, len(z)), found)


def _of_rows(distribution, number: int):
    """One factor a row; ValueError where there are others, as of a head that sees an array of all rows."""
    if distribution.batch_shape[:1] not in ((), (1,), (number,)):
        raise ValueError(f"{distribution.batch_shape} factors for {number} rows")
    return rowwise(distribution, number)


def head_or_none(apply: Callable, head: Head, weights, x) -> NetworkHead | None:
    """None where outcomes cannot be drawn, have no derivative, or lean on more than the outputs of their row."""
    try:
        found = NetworkHead.of(apply, head, weights, x)
        z = abstract((1, sum(int(np.prod(s)) for s in (*found.shapes, *(s for _, s in found.own)))))
        jax.eval_shape(lambda z: found.scores(z, jnp.zeros(1, jnp.uint32), 1), z)
    except Exception:  # of the user's function, or of numpyro's distributions that cannot be drawn
        return None
    return found
