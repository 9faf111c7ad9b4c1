"""A prior as a program that visits named distributions in order.

Everything that is asked of a prior (density, transform, sampling, shapes) is a *visit*: ``value`` gives each parameter
its value, ``see`` looks at it afterwards. ``Prior`` (prior.py) is the one that users write; a program of another
library becomes a prior by its own ``visit`` (see adapters).
"""

import functools
import zlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution

from credo.model.distributions import is_improper, on_the_way, transform_to
from credo.model.mended import log_prob
from credo.status import CredoError

Params = Any
Position = dict[str, Any]  # leaf name -> unconstrained array
# (name, distribution, index) -> value. Inside a loop over time the distribution is that of one step and ``index`` says
# which; elsewhere it is None. No side effects there: a loop's body is traced on its own.
Value = Callable[[str, Distribution, Any], Any]
See = Callable[[str, Distribution, Any], None]


class Visited(NamedTuple):
    """What a visit brings home.

    ``log_factor()``: the sum of the log factors that the program holds beside its distributions. ``outcome``: the
    distribution of the data (or a dict of them) where the program has met it on its way, else None.
    """

    params: Params
    log_factor: Callable[[], Any]
    outcome: Any


class AbstractPrior(eqx.Module):
    """A program that visits named distributions. ``names``: those of its dict of parameters; None if it is no dict.

    ``factors``: the names of log factors that cannot be drawn from, so that the prior cannot be sampled.
    """

    names: eqx.AbstractVar[tuple[str, ...] | None]
    factors: eqx.AbstractVar[tuple[str, ...]]

    @abstractmethod
    def visit(self, value: Value, see: See, key=None) -> Visited:
        """Give each parameter, in order, the ``value`` it takes, and let ``see`` look at it.

        ``key``: for what is random and no parameter (a discrete variable that is summed out), where that matters.
        """

    @abstractmethod
    def recorded(self, params: Params) -> dict[str, Any]:
        """Quantities that the program itself derives from its parameters, by name."""

    def joint(self, u: Position) -> tuple[Params, jax.Array, Any]:
        """(parameters at ``u``, log density of ``u`` with its log-Jacobian, the outcome met on the way or None)."""
        params, log_prob, log_jacobian, outcome = self._at(u)
        return params, log_prob + log_jacobian, outcome

    def log_jacobian(self, u: Position) -> jax.Array:
        """log |∂ params / ∂ u|."""
        return self._at(u)[2]

    def _at(self, u: Position) -> tuple[Params, jax.Array, jax.Array, Any]:
        """(parameters at ``u``, their log density and log factors, the log-Jacobian, the outcome)."""
        log_prob = log_jacobian = jnp.zeros(())

        def see(name, distribution, value):
            nonlocal log_prob, log_jacobian
            terms = terms_at(u[name], distribution, value)
            log_prob, log_jacobian = log_prob + jnp.sum(terms[0]), log_jacobian + jnp.sum(terms[1])

        params, log_factor, outcome = self.visit(functools.partial(_value_at, u), see)
        return params, log_prob + log_factor(), log_jacobian, outcome

    def densities(self, u: Position) -> dict[str, jax.Array]:
        """log p of each parameter given those it hangs on, by leaf name, without Jacobian."""
        found: dict[str, jax.Array] = {}

        def see(name, distribution, value):
            found[name] = jnp.sum(terms_at(u[name], distribution, value)[0])

        self.visit(functools.partial(_value_at, u), see)
        return found

    def constrain(self, u: Position) -> Params:
        """The parameters at ``u``, of which no density is traced: of many of them that takes a tenth of a second."""
        return self.visit(functools.partial(_value_at, u), lambda *_: None).params

    def unconstrain(self, params: Params) -> Position:
        """The position of ``params``."""
        values, u = self.leaves(params), {}

        def see(name, distribution, value):
            u[name] = transform_to(distribution)._inverse(value)

        self.visit(lambda name, _, index: at_index(values[name], index), see)
        return u

    def at_origin(self) -> Params:
        """The parameters whose unconstrained coordinates are all zero."""
        return self.visit(lambda name, distribution, _: origin(name, distribution), lambda *_: None).params

    def sample(self, key) -> tuple[Params, Position]:
        """One draw from the prior, in the user's space and as a position."""
        u = {}
        if self.factors:
            raise CredoError(
                f"The prior has a factor ({self.factors[0]!r}) that cannot be drawn from, a log factor or a latent "
                "site whose density is scaled: write it as a distribution, or start from a position."
            )

        def value(name, distribution, index):
            if is_improper(distribution):
                raise CredoError(
                    f"Parameter {name!r} has an improper prior, which cannot be sampled: give it a proper one."
                )
            own = jax.random.fold_in(key, zlib.crc32(name.encode()))
            try:
                return distribution.sample(own if index is None else jax.random.fold_in(own, index))
            except ImportError as error:  # truncated t: its quantile function is that of another package
                raise CredoError(
                    f"The prior of {name!r} cannot be drawn from as numpyro stands ({str(error).rstrip('.')}): install "
                    "that, or use a method that needs no draws of the prior, such as NUTS()."
                ) from error

        def see(name, distribution, value):
            u[name] = transform_to(distribution)._inverse(value)

        return self.visit(value, see, key).params, u

    def survey(self, see: See) -> Params:
        """Visit abstractly, each parameter at its unconstrained origin: shapes and supports, nothing computed."""
        return jax.eval_shape(lambda: self.visit(lambda name, d, _: origin(name, d), see).params)

    def improper_names(self) -> tuple[str, ...]:
        """What keeps the prior from integrating to one: parameters with an improper prior, and factors."""
        names = []

        def value(name, distribution, index):
            if is_improper(distribution):
                names.append(name)
            return origin(name, distribution)

        jax.eval_shape(lambda: self.visit(value, lambda *_: None).params)
        return (*dict.fromkeys(names), *self.factors)

    def leaves(self, params: Params) -> dict[str, Any]:
        """The parameters as a flat dict, leaf name -> array."""
        if self.names is None:
            return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        missing = [name for name in self.names if name not in params]
        if missing:
            names = ", ".join(map(repr, self.names))
            raise CredoError(f"The parameters lack {missing[0]!r}: give a dict of the model's parameters, {names}.")
        return {
            leaf_name((name, *path)): leaf
            for name in self.names
            for path, leaf in jax.tree_util.tree_leaves_with_path(params[name])
        }


SOLE_NAME = "params"  # of the parameter where the whole prior is one distribution, which users give no name


def _value_at(u: Position, name: str, distribution: Distribution, index):
    return transform_to(distribution)(at_index(u[name], index))


def leaf_name(path) -> str:
    """``('net', DictKey('w'), SequenceKey(0))`` -> ``net.w.0``; the empty path, a prior that is one distribution."""
    parts = (getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))) for k in path)
    return ".".join(str(part) for part in parts) or SOLE_NAME


def origin(name: str, distribution: Distribution):
    """The value of a parameter at the unconstrained origin, with a sentence where there is none."""
    try:
        transform = transform_to(distribution)
    except NotImplementedError as error:
        raise CredoError(
            f"Parameter {name!r} has support {distribution.support}, from which no bijection to unconstrained "
            "coordinates is known: write it as a function of parameters that have one."
        ) from error
    return transform(jnp.zeros(transform.inverse_shape(distribution.shape())))


def terms_at(u, distribution: Distribution, value) -> tuple[Any, Any]:
    """log p(value) and the log-Jacobian of its coordinates ``u``, unsummed; −inf of a discrete one out of its support.

    Continuous ones cannot lie there, by their transforms; numpyro's own answer there is that of some other value.
    """
    terms, support = log_prob(distribution, value, on_the_way(distribution, u)), distribution.support
    assert support is not None
    log_jacobian = transform_to(distribution).log_abs_det_jacobian(u, value)
    return jnp.where(support(value), terms, -jnp.inf) if support.is_discrete else terms, log_jacobian


def at_index(array, index):
    """A step of a series, or the whole where there is no series."""
    array = jnp.asarray(array)
    return array if index is None else array[index]
