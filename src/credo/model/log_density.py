"""Users' own functions as parts of a model, and what a bare log density has in place of a prior and a likelihood."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpyro.distributions import Distribution, ImproperUniform, constraints

from credo.model.prior import Conditional, argument_names
from credo.model.shared import shared
from credo.status import CredoError


class Function(eqx.Module):
    """A user's callable: the arrays in it, if it is a pytree, are arguments of compiled code; the rest is static.

    Of one under ``jax.jit`` the function within, which would read its globals once and for all.
    """

    arrays: Any
    rest: Any = eqx.field(static=True)

    def __init__(self, function: Callable):
        function = getattr(function, "__wrapped__", function) if isinstance(function, jax.stages.Wrapped) else function
        self.arrays, self.rest = eqx.partition(shared(function), lambda leaf: isinstance(leaf, jax.Array | np.ndarray))

    def __call__(self, *arguments):
        return eqx.combine(self.arrays, self.rest)(*arguments)


class LogFactor(eqx.Module):
    """A log density of parameters, or of parameters and data.

    ``takes_data``: whether it has a second argument; ``needs_data``: whether that has no default.
    """

    log_density: Function
    takes_data: bool = eqx.field(static=True)
    needs_data: bool = eqx.field(static=True)

    def __init__(self, log_density: Callable):
        parameter = inspect.Parameter
        by_place = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)
        places = [p for p in inspect.signature(log_density).parameters.values() if p.kind in by_place]
        self.log_density = Function(log_density)
        self.takes_data = len(places) > 1
        self.needs_data = self.takes_data and places[1].default is parameter.empty and places[1].kind != by_place[2]

    def __call__(self, params, data):
        return self.log_density(params) if data is None else self.log_density(params, data)

    def check(self, data) -> None:
        if data is None and self.needs_data:
            raise CredoError("The log density takes data, and given() got none: give them, as model.given(data).")
        if data is not None and not self.takes_data:
            raise CredoError(
                "given() got data, and the log density takes none: write it as log_density(params, data), or leave the "
                "data out."
            )


class _FlatPrior(eqx.Module):
    """A flat prior on a support that depends on earlier parameters. Equal if support and shape are."""

    support: Callable = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, **earlier):
        return _improper(self.support(**earlier), self.shape)


def flat_prior(support, shape: tuple[int, ...]):
    if isinstance(support, constraints.Constraint):
        return _improper(support, shape)
    if not callable(support):
        raise CredoError(f"A support must be a numpyro constraint or a callable that returns one, not {support!r}.")
    return Conditional(_FlatPrior(support, shape), argument_names(support))


def _improper(support, shape: tuple[int, ...]) -> Distribution:
    event = len(shape) - support.event_dim
    if event < 0:
        raise CredoError(f"A {type(support).__name__.strip('_')} support needs shape with {support.event_dim} axes.")
    return ImproperUniform(support, shape[:event], shape[event:])
