"""What is believed before the data: a program that visits named distributions in order.

A prior is a pytree of numpyro distributions. In a dict, a callable names the earlier parameters it depends on::

    {"tau": HalfCauchy(5.0), "theta": lambda tau: Normal(0.0, tau).expand([8])}

Everything else (density, transform, sampling, shapes) is a *visit*: a function of (name, distribution) that
returns the value the parameter takes. A distribution's hyperparameters are leaves of the prior, hence arguments
of compiled functions; callables are static.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ImproperUniform, Uniform, biject_to

from credo.status import CredoError

Params = Any
Position = dict[str, jax.Array]  # leaf name -> unconstrained array
Visitor = Callable[[str, Distribution], jax.Array]


class Conditional(eqx.Module):
    """A distribution (or a pytree of them) given earlier parameters, which ``function`` names as its arguments."""

    function: Callable = eqx.field(static=True)
    arguments: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, earlier: Mapping[str, Params]):
        return self.function(**{name: earlier[name] for name in self.arguments})


def is_distribution(node) -> bool:
    return isinstance(node, Distribution)


class Prior(eqx.Module):
    """The named groups of a prior in the order in which they were given.

    ``names`` is None where the prior is not a dict; then ``trees`` holds its single pytree and the parameters
    have that pytree's structure.
    """

    names: tuple[str, ...] | None = eqx.field(static=True)
    trees: tuple[Any, ...]

    def __init__(self, spec):
        if isinstance(spec, Mapping):
            if not all(isinstance(name, str) for name in spec):
                raise CredoError(f"Parameter names must be strings; the prior has {list(spec)!r}.")
            self.names = tuple(spec)
            self.trees = tuple(_prepare(spec[name], name, self.names[:i]) for i, name in enumerate(self.names))
        else:
            self.names = None
            self.trees = (_prepare(spec, "", ()),)

    def visit(self, visitor: Visitor) -> Params:
        """Call ``visitor(name, distribution)`` for each parameter in order; return the parameters it gave."""
        params: dict[str, Params] = {}

        def enter(path, node):
            name = leaf_name(path)
            if isinstance(node, Conditional):
                given = node(params)
                return jax.tree_util.tree_map_with_path(
                    lambda inner, leaf: visitor(leaf_name((*path, *inner)), leaf), given, is_leaf=is_distribution
                )
            return visitor(name, node)

        def is_leaf(node):
            return isinstance(node, Conditional) or is_distribution(node)

        for name, tree in zip(self.names or ("",), self.trees, strict=True):
            root = (name,) if self.names is not None else ()
            params[name] = jax.tree_util.tree_map_with_path(
                lambda path, node, root=root: enter((*root, *path), node), tree, is_leaf=is_leaf
            )
        return params if self.names is not None else params[""]

    def leaves(self, params: Params) -> dict[str, jax.Array]:
        """The parameters as a flat dict, leaf name -> array."""
        if self.names is None:
            return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        missing = [name for name in self.names if name not in params]
        if missing:
            raise CredoError(f"The parameters lack {missing[0]!r}; the model has {', '.join(self.names)}.")
        return {
            leaf_name((name, *path)): leaf
            for name in self.names
            for path, leaf in jax.tree_util.tree_leaves_with_path(params[name])
        }

    def constrain(self, u: Position) -> tuple[Params, jax.Array]:
        """The parameters at ``u`` and the log density of ``u`` under the prior, log-Jacobian included."""
        log_prob = jnp.zeros(())

        def visitor(name, distribution):
            nonlocal log_prob
            transform = biject_to(distribution.support)
            value = transform(u[name])
            log_jacobian = transform.log_abs_det_jacobian(u[name], value)
            log_prob = log_prob + jnp.sum(distribution.log_prob(value)) + jnp.sum(log_jacobian)
            return value

        params = self.visit(visitor)
        return params, log_prob

    def unconstrain(self, params: Params) -> tuple[Position, jax.Array]:
        """The position of ``params`` and the log-Jacobian of the map from it to them."""
        values, u, log_jacobian = self.leaves(params), {}, jnp.zeros(())

        def visitor(name, distribution):
            nonlocal log_jacobian
            transform = biject_to(distribution.support)
            value = jnp.asarray(values[name])
            u[name] = transform._inverse(value)
            log_jacobian = log_jacobian + jnp.sum(transform.log_abs_det_jacobian(u[name], value))
            return value

        self.visit(visitor)
        return u, log_jacobian

    def sample(self, key) -> tuple[Params, Position]:
        """One draw from the prior, in the user's space and as a position."""
        u = {}

        def visitor(name, distribution):
            if _is_improper(distribution):
                raise CredoError(
                    f"Parameter {name!r} has an improper prior, which cannot be sampled: give it a proper one."
                )
            value = distribution.sample(jax.random.fold_in(key, len(u)))
            u[name] = biject_to(distribution.support)._inverse(value)
            return value

        params = self.visit(visitor)
        return params, u

    def improper_names(self) -> tuple[str, ...]:
        """The parameters whose prior does not integrate to one."""
        names = []

        def visitor(name, distribution):
            if _is_improper(distribution):
                names.append(name)
            return origin(name, distribution)[1]

        jax.eval_shape(lambda: self.visit(visitor))
        return tuple(names)


def leaf_name(path) -> str:
    """``('net', DictKey('w'), SequenceKey(0))`` -> ``net.w.0``."""
    parts = (getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))) for k in path)
    return ".".join(str(part) for part in parts)


def origin(name: str, distribution: Distribution):
    """The unconstrained origin of a parameter and its value there, with a sentence where there is none."""
    if distribution.support.is_discrete:
        raise CredoError(
            f"Parameter {name!r} is discrete ({type(distribution).__name__}): no gradient method can move it. "
            "Sum it out of the likelihood, or sample it in a Gibbs block."
        )
    transform = biject_to(distribution.support)
    u = jnp.zeros(transform.inverse_shape(distribution.shape()))
    return u, transform(u)


def _is_improper(distribution: Distribution) -> bool:
    while not isinstance(distribution, ImproperUniform) and hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return isinstance(distribution, ImproperUniform)


def _prepare(tree, name: str, earlier: tuple[str, ...]):
    """Wrap callables, turn hyperparameters into arrays and check what can be checked before any data."""

    def prepare(path, node):
        full = leaf_name((name, *path)) if name else leaf_name(path) or "the prior"
        if is_distribution(node):
            _check_arguments(full, node)
            return jax.tree.map(lambda leaf: np.asarray(leaf) if np.isscalar(leaf) else leaf, node)
        if isinstance(node, Conditional):
            return node
        if callable(node):
            arguments = tuple(inspect.signature(node).parameters)
            unknown = [a for a in arguments if a not in earlier]
            if unknown:
                known = ", ".join(earlier) or "none"
                raise CredoError(
                    f"The prior of {full!r} depends on {unknown[0]!r}, which is not an earlier parameter "
                    f"(earlier: {known}): rename the argument, or define {unknown[0]!r} before {full!r}."
                )
            return Conditional(node, arguments)
        raise CredoError(
            f"The prior of {full!r} is {type(node).__name__}: give a numpyro distribution, or a callable that "
            "returns one from earlier parameters."
        )

    return jax.tree_util.tree_map_with_path(
        prepare, tree, is_leaf=lambda node: is_distribution(node) or (callable(node) and not eqx.is_array(node))
    )


def _check_arguments(name: str, distribution: Distribution) -> None:
    """Refuse hyperparameters that are not finite (numpyro itself refuses a scale that is not positive)."""
    for leaf in jax.tree.leaves(distribution):
        values = np.asarray(leaf)
        if not isinstance(distribution, ImproperUniform | Uniform) and not np.all(np.isfinite(values)):
            raise CredoError(
                f"The prior of {name!r} is {type(distribution).__name__} with a hyperparameter that is "
                f"{values[~np.isfinite(values)].ravel()[0]}: give finite values, or ImproperUniform for a flat prior."
            )
