"""A prior in words: what each parameter was believed to be before the data."""

import jax
import numpy as np
from jax.core import Tracer

from credo.model.distributions import unwrapped
from credo.model.visit import AbstractPrior, origin

MAX_SHOWN = 30


def priors_in_words(prior: AbstractPrior) -> list[str]:
    """A sentence a parameter: ``w: Normal(loc 0, scale 2.5), 30 of them``.

    Hyperparameters that are other parameters are said to be so; those that differ by element are left as a range.
    """
    found: list[str] = []

    def value(name, distribution, index):
        inner = unwrapped(distribution)
        shape = distribution.shape()
        arguments = ", ".join(_argument(key, getattr(inner, key, None)) for key in inner.arg_constraints)
        size = int(np.prod(shape)) if shape else 1
        count = f", {size} of them" if size > 1 else ""
        found.append(f"{name or 'the parameter'}: {type(inner).__name__}({arguments}){count}.")
        return origin(name, distribution)

    jax.eval_shape(lambda: prior.visit(value, lambda *_: None).params)
    if len(found) > MAX_SHOWN:
        return [*found[:MAX_SHOWN], f"… and {len(found) - MAX_SHOWN} more."]
    return found


def _argument(name: str, value) -> str:
    if value is None:
        return f"{name} ?"
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        return f"{name} by other parameters"
    values = np.ravel(np.asarray(value, float))
    if values.size == 0 or np.ptp(values) == 0:
        return f"{name} {values[0]:.4g}" if values.size else name
    return f"{name} {values.min():.4g} to {values.max():.4g}"
