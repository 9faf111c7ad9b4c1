"""What is believed before the data: a program that visits named distributions in order.

A prior is a pytree of numpyro distributions. In a dict, a callable names the earlier parameters it depends on::

    {"tau": HalfCauchy(5.0), "theta": lambda tau: Normal(0.0, tau).expand([8])}

Everything else (density, transform, sampling, shapes) is a *visit*: ``value`` gives each parameter its value,
``see`` looks at it afterwards. A distribution's hyperparameters are leaves of the prior, hence arguments of compiled
functions; callables are static. ``Prior`` is the one that users write; a program of
another library becomes an ``AbstractPrior`` by its own ``visit`` (see adapters).
"""

import inspect
import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ImproperUniform, Uniform, biject_to

from credo.model.distributions import is_distribution, is_improper
from credo.status import CredoError

Params = Any
Position = dict[str, jax.Array]  # leaf name -> unconstrained array
# (name, distribution, index) -> value. Inside a loop over time the distribution is that of one step and ``index`` says
# which; elsewhere it is None. No side effects there: a loop's body is traced on its own.
Value = Callable[[str, Distribution, Any], jax.Array]
See = Callable[[str, Distribution, jax.Array], None]


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

    ``factors``: the names of log factors that are no distributions, so that the prior cannot be sampled.
    """

    names: eqx.AbstractVar[tuple[str, ...] | None]
    factors: eqx.AbstractVar[tuple[str, ...]]

    @abstractmethod
    def visit(self, value: Value, see: See, key=None) -> Visited:
        """Give each parameter, in order, the ``value`` it takes, and let ``see`` look at it.

        ``key``: for what is random and no parameter (a discrete variable that is summed out), where that matters.
        """

    @abstractmethod
    def recorded(self, params: Params) -> dict[str, jax.Array]:
        """Quantities that the program itself derives from its parameters, by name."""

    def joint(self, u: Position) -> tuple[Params, jax.Array, Any]:
        """(parameters at ``u``, log density of ``u`` with its log-Jacobian, the outcome met on the way or None)."""
        log_prob = jnp.zeros(())

        def value(name, distribution, index):
            return biject_to(distribution.support)(at_index(u[name], index))

        def see(name, distribution, value):
            nonlocal log_prob
            log_jacobian = biject_to(distribution.support).log_abs_det_jacobian(u[name], value)
            log_prob = log_prob + jnp.sum(distribution.log_prob(value)) + jnp.sum(log_jacobian)

        params, log_factor, outcome = self.visit(value, see)
        return params, log_prob + log_factor(), outcome

    def constrain(self, u: Position) -> tuple[Params, jax.Array]:
        """The parameters at ``u`` and the log density of ``u`` under the prior, log-Jacobian included."""
        return self.joint(u)[:2]

    def unconstrain(self, params: Params) -> tuple[Position, jax.Array]:
        """The position of ``params`` and the log-Jacobian of the map from it to them."""
        values, u, log_jacobian = self.leaves(params), {}, jnp.zeros(())

        def see(name, distribution, value):
            nonlocal log_jacobian
            transform = biject_to(distribution.support)
            u[name] = transform._inverse(value)
            log_jacobian = log_jacobian + jnp.sum(transform.log_abs_det_jacobian(u[name], value))

        self.visit(lambda name, _, index: at_index(values[name], index), see)
        return u, log_jacobian

    def sample(self, key) -> tuple[Params, Position]:
        """One draw from the prior, in the user's space and as a position."""
        u = {}
        if self.factors:
            raise CredoError(
                f"The prior has a log factor ({self.factors[0]!r}) that is no distribution, so it cannot be sampled: "
                "write that factor as a distribution, or start from a position."
            )

        def value(name, distribution, index):
            if is_improper(distribution):
                raise CredoError(
                    f"Parameter {name!r} has an improper prior, which cannot be sampled: give it a proper one."
                )
            own = jax.random.fold_in(key, zlib.crc32(name.encode()))
            return distribution.sample(own if index is None else jax.random.fold_in(own, index))

        def see(name, distribution, value):
            u[name] = biject_to(distribution.support)._inverse(value)

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

    def recorded(self, params: Params) -> dict[str, jax.Array]:
        return {}


def tree_map_with_path(function, tree, is_leaf):
    return jax.tree_util.tree_map_with_path(function, tree, is_leaf=is_leaf)


def leaf_name(path) -> str:
    """``('net', DictKey('w'), SequenceKey(0))`` -> ``net.w.0``."""
    parts = (getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))) for k in path)
    return ".".join(str(part) for part in parts)


def origin(name: str, distribution: Distribution):
    """The value of a parameter at the unconstrained origin, with a sentence where there is none."""
    if distribution.is_discrete:
        raise CredoError(
            f"Parameter {name!r} is discrete ({type(distribution).__name__}): no gradient method can move it. "
            "Sum it out of the likelihood, or sample it in a Gibbs block."
        )
    try:
        transform = biject_to(distribution.support)
    except NotImplementedError as error:
        raise CredoError(
            f"Parameter {name!r} has support {distribution.support}, from which no bijection to unconstrained "
            "coordinates is known: write it as a function of parameters that have one."
        ) from error
    return transform(jnp.zeros(transform.inverse_shape(distribution.shape())))


def at_index(array, index):
    """A step of a series, or the whole where there is no series."""
    array = jnp.asarray(array)
    return array if index is None else array[index]


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

    return tree_map_with_path(
        prepare, tree, lambda node: is_distribution(node) or (callable(node) and not eqx.is_array(node))
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
