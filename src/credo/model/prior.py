"""What is believed before the data, as users write it: a pytree of numpyro distributions.

In a dict, a callable names the earlier parameters it depends on::

    {"tau": HalfCauchy(5.0), "theta": lambda tau: Normal(0.0, tau).expand([8])}

A distribution's hyperparameters are leaves of the prior, hence arguments of compiled functions; callables are static.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import Distribution, ImproperUniform, MultivariateNormal, Uniform

from credo.model.distributions import is_distribution, unwrapped
from credo.model.shared import shared
from credo.model.visit import AbstractPrior, Params, See, Value, Visited, leaf_name
from credo.model.visit import at_index as at_index  # re-exported: predict reads a step of a series too
from credo.ordered import Ordered
from credo.precision import double
from credo.status import CredoError


class Conditional(eqx.Module):
    """A distribution (or a pytree of them) given earlier parameters, which ``function`` names as its arguments."""

    function: Callable = eqx.field(static=True)
    arguments: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, earlier: Mapping[str, Params]):
        return self.function(**{name: earlier[name] for name in self.arguments})


class Prior(AbstractPrior):
    """The named groups of a prior in the order in which they were given.

    ``names`` is None where the prior is not a dict; then ``trees`` holds its single pytree and the parameters
    have that pytree's structure.
    """

    names: tuple[str, ...] | None = eqx.field(static=True)
    ordered: Ordered  # the trees: NumPyro takes long to flatten its distributions, which is done often

    def __init__(self, spec):
        if isinstance(spec, Mapping):
            if not all(isinstance(name, str) for name in spec):
                raise CredoError(f"Parameter names must be strings; the prior has {list(spec)!r}.")
            if not spec:
                raise CredoError(
                    "The prior is empty: a model has one parameter at least. Of a hypothesis without any the log "
                    "evidence is its log likelihood."
                )
            self.names = tuple(spec)
            trees = tuple(_prepare(spec[name], name, self.names[:i]) for i, name in enumerate(self.names))
        else:
            self.names = None
            trees = (_prepare(spec, "", ()),)
        self.ordered = Ordered.of(trees)

    @property
    def trees(self) -> tuple[Any, ...]:
        return self.ordered.tree

    @property
    def factors(self) -> tuple[str, ...]:
        return ()

    def visit(self, value: Value, see: See, key=None) -> Visited:
        params: dict[str, Params] = {}

        def meet(path, distribution):
            name = leaf_name(path)
            taken = value(name, distribution, None)
            see(name, distribution, taken)
            return taken

        def enter(path, node):
            if isinstance(node, Conditional):
                return tree_map_with_path(lambda inner, d: meet((*path, *inner), d), node(params), is_distribution)
            return meet(path, node)

        for name, tree in zip(self.names or ("",), self.trees, strict=True):
            root = (name,) if self.names is not None else ()
            params[name] = tree_map_with_path(
                lambda path, node, root=root: enter((*root, *path), node),
                tree,
                lambda node: isinstance(node, Conditional) or is_distribution(node),
            )
        return Visited(params if self.names is not None else params[""], lambda: jnp.zeros(()), None)

    def recorded(self, params: Params) -> dict[str, Any]:
        return {}


def argument_names(function: Callable) -> tuple[str, ...]:
    """The parameters that a user's function depends on: its arguments, but those that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty)


def tree_map_with_path(function, tree, is_leaf):
    return jax.tree_util.tree_map_with_path(function, tree, is_leaf=is_leaf)


def _prepare(tree, name: str, earlier: tuple[str, ...]):
    """Wrap callables, turn hyperparameters into arrays and check what can be checked before any data."""

    def prepare(path, node):
        full = leaf_name((name, *path) if name else path)
        if is_distribution(node):
            _check_arguments(full, node)
            return jax.tree.map(_hyperparameter, node, is_leaf=lambda inner: isinstance(inner, MultivariateNormal))
        if callable(node):
            function = node.function if isinstance(node, Conditional) else node
            arguments = node.arguments if isinstance(node, Conditional) else argument_names(node)
            unknown = [a for a in arguments if a not in earlier]
            if unknown:
                known = ", ".join(earlier) or "none"
                raise CredoError(
                    f"The prior of {full!r} depends on {unknown[0]!r}, which is not an earlier parameter "
                    f"(earlier: {known}): rename the argument, or define {unknown[0]!r} before {full!r}."
                )
            return Conditional(shared(function), arguments)
        raise CredoError(
            f"The prior of {full!r} is {type(node).__name__}: give a numpyro distribution, or a callable that "
            "returns one from earlier parameters."
        )

    return tree_map_with_path(prepare, tree, lambda node: is_distribution(node) or _is_function(node))


def _is_function(node) -> bool:
    """And no module that can be called, whose weights' priors stand in the place of its arrays."""
    return callable(node) and not any(map(is_distribution, jax.tree.leaves(node, is_leaf=is_distribution)))


def _hyperparameter(leaf):
    """An array in double precision: a float32 one would drag the special functions of a density down with it.

    Outside JAX's 64-bit context numpyro rounds some arguments to float32 before they are seen here. The shortest
    decimal that rounds to the same float32 is what was typed; a Cholesky factor is computed anew.
    """
    if isinstance(leaf, MultivariateNormal):
        return _multivariate_normal(leaf)
    if isinstance(leaf, Tracer) or not (np.isscalar(leaf) or eqx.is_array_like(leaf)):
        return leaf
    values = np.asarray(leaf)
    if values.dtype == np.float32:
        return values.astype("U32").astype(np.float64)
    if np.issubdtype(values.dtype, np.signedinteger):  # of 32 bits, JAX has its special functions in float32
        return values.astype(np.int64)
    return values.astype(np.float64) if np.issubdtype(values.dtype, np.floating) else values


def _multivariate_normal(d: MultivariateNormal) -> MultivariateNormal:
    location = _hyperparameter(d.loc)
    for name in ("covariance_matrix", "precision_matrix"):
        if name in d.__dict__:
            with double():
                matrix = _hyperparameter(d.__dict__[name])
                again = MultivariateNormal(location, **{name: matrix}, validate_args=False)
                return jax.tree.map(np.asarray, again)
    return jax.tree.map(_hyperparameter, d)


def _check_arguments(name: str, distribution: Distribution) -> None:
    """Refuse hyperparameters that are not finite (numpyro itself refuses a scale that is not positive)."""
    inner = unwrapped(distribution)
    if isinstance(inner, Uniform) and np.any(np.asarray(inner.low) >= np.asarray(inner.high)):
        raise CredoError(
            f"The prior of {name!r} is Uniform, whose lower end {inner.low} is not below its upper end {inner.high}: "
            "swap them."
        )
    for leaf in jax.tree.leaves(distribution):
        values = np.asarray(leaf)
        if not isinstance(distribution, ImproperUniform | Uniform) and not np.all(np.isfinite(values)):
            raise CredoError(
                f"The prior of {name!r} is {type(distribution).__name__} with a hyperparameter that is "
                f"{values[~np.isfinite(values)].ravel()[0]}: give finite values, or ImproperUniform for a flat prior."
            )
