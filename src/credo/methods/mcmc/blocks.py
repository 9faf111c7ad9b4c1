"""The updates of blocks that are no closed forms: a conditional of the user's own, and a step of any kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from credo.methods.mcmc.chains import Recipe
from credo.methods.mcmc.conditional import Block, Conditional
from credo.methods.mcmc.gibbs import Moved, Update
from credo.methods.mcmc.warmup import Adaptive, Tuning
from credo.model.check import explained
from credo.model.distributions import bounds_of, contains, transform_to
from credo.model.log_density import Function
from credo.model.target import Target
from credo.model.visit import at_index
from credo.precision import double
from credo.status import CredoError

# a conditional of the user's own --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """Draws in the user's space, where all other parameters keep their values.

    ``moved``: the coordinates that change with them, those of parameters whose support depends on others included.
    """

    block: Block
    moved: Block

    def initial(self, target, given, key, position):
        return None

    def update(self, target: Target, function: Function) -> Update:
        def step(key, position, _) -> Moved:
            params = target.constrain(position)
            values = _named(self.block, function(key, params, data_of(target)))
            found, is_inside = _unconstrain(target, params, values)
            v = self.moved.take(found)
            is_valid = is_inside & jnp.all(jnp.isfinite(v))
            return Moved(self.moved.put(position, v.astype(position.dtype)), is_valid=is_valid)

        return Update(lambda key, position: None, step)


def own(target: Target, block: Block, conditional: Callable) -> tuple[Own, Function]:
    """The update of a user's ``conditional(key, params, data)``, looked at once, abstractly; CredoError if it is none.

    ``data`` is ``Rows(x, y, weights)``, or what a model from a log density was given.
    """
    function, structure = Function(conditional), target.structure
    what = f"The conditional of {block.label}"

    def call(target, u):
        return function(jax.random.key(0), target.constrain(u), data_of(target))

    with double(), explained(what, structure, target.x):
        found = jax.eval_shape(call, target, jnp.zeros(target.dim))
    if len(block.names) > 1 and (not isinstance(found, Mapping) or set(found) != set(block.names)):
        shown = f"a dict of {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"a {_kind(found)}"
        raise CredoError(f"{what} returned {shown}: return a dict with a new value for each of {block.label}.")
    values = _named(block, found)
    for leaf in structure.leaves:
        if leaf.name in block.names:
            _check_value(what, leaf, values[leaf.name])
    return Own(block, Block.of(structure, (*block.names, *_dependent(target)))), function


def data_of(target: Target):
    """What a user's conditional sees of the data."""
    return target.x if target.model.log_factor is not None else target.rows()


def _named(block: Block, value) -> dict[str, Any]:
    return dict(value) if len(block.names) > 1 else {name: value for name in block.names}


def _kind(found) -> str:
    return f"{found.dtype} array of shape {found.shape}" if hasattr(found, "dtype") else type(found).__name__


def _check_value(what: str, leaf, value) -> None:
    if not hasattr(value, "dtype") and not isinstance(value, int | float):
        raise CredoError(f"{what} returned a {_kind(value)} for {leaf.name!r}: return its new value, an array.")
    shape, dtype = np.shape(value), getattr(value, "dtype", np.asarray(value).dtype)
    if shape != leaf.shape:
        raise CredoError(
            f"{what} returned {leaf.name!r} with shape {shape}; in the model it has {leaf.shape}. Return the whole "
            "parameter, in that shape."
        )
    is_whole = np.issubdtype(dtype, np.integer) or np.issubdtype(dtype, np.bool_)
    if leaf.is_discrete and not is_whole:
        raise CredoError(
            f"{what} returned {dtype} for {leaf.name!r}, which is discrete: return whole numbers, with astype(int)."
        )
    if not is_whole and not np.issubdtype(dtype, np.floating):
        raise CredoError(f"{what} returned {dtype} for {leaf.name!r}: return real numbers.")


def _dependent(target: Target) -> list[str]:
    """Parameters whose support depends on others: their coordinates change where only their values stay."""
    found = []

    def see(name, distribution, value):
        with jax.ensure_compile_time_eval():  # bounds computed from constants are constants
            bounds = bounds_of(distribution)
        if any(isinstance(bound, Tracer) for bound in bounds):
            found.append(name)

    target.prior.survey(see)
    return found


def _unconstrain(target: Target, params, values: Mapping[str, Any]):
    """(position, whether ``values`` lie in their supports) of ``params`` with ``values`` for some of them."""
    named = target.prior.leaves(params)
    named |= {name: jnp.asarray(value).astype(named[name].dtype) for name, value in values.items()}
    u, is_inside = {}, jnp.bool_(True)

    def see(name, distribution, value):
        nonlocal is_inside
        u[name] = transform_to(distribution)._inverse(value)
        if name in values:
            is_inside = is_inside & jnp.all(contains(distribution, value))

    target.prior.visit(lambda name, _, index: at_index(named[name], index), see)
    return target.structure.ravel(u), is_inside


# a step of any kernel -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    """One step of a kernel on the block's conditional density; its step size and metric adapt in warm-up.

    The density has changed since the last sweep, so that the kernel begins anew each time, with what is tuned.
    """

    block: Block
    adaptive: Adaptive

    def initial(self, target, given, key, position):
        conditional = Conditional(target, position, self.block)
        return self.adaptive.initial(conditional, given, key, self.block.take(position))

    def update(self, target: Target, tuning: Tuning) -> Update:
        def init(key, position):
            conditional = Conditional(target, position, self.block)
            return self.adaptive.algorithm(conditional, tuning).init(key, self.block.take(position))

        def step(key, position, carried) -> Moved:
            conditional = Conditional(target, position, self.block)
            k_init, k_step = jax.random.split(key)
            kernel = self.adaptive.initial(conditional, tuning.given, k_init, self.block.take(position))
            now, info = self.adaptive.algorithm(conditional, tuning).step(k_step, carried._replace(kernel=kernel))
            return Moved(
                conditional.whole(now.position),
                now,
                log_density=now.kernel.log_density,
                acceptance=getattr(info, "acceptance", 1),
                num_steps=info.num_steps + 1 if hasattr(info, "num_steps") else 0,
                num_densities=info.num_densities + 1 if hasattr(info, "num_densities") else 0,
                num_undefined=getattr(info, "num_undefined", 0),
                is_divergent=getattr(info, "is_divergent", False),
            )

        return Update(init, step)


def inner(target: Target, block: Block, method) -> tuple[Inner, Recipe]:
    """The update of a sampler such as ``NUTS()``, and its recipe for a block of this size."""
    name = type(method).__name__
    discrete = [each for each in block.names if each in target.structure.discrete_names]
    if discrete:
        raise CredoError(
            f"The block {block.label} holds {discrete[0]!r}, which is discrete, and {name}() moves continuous "
            "parameters only: give it a block of its own, with Enumerated() or a conditional of yours."
        )
    for setting in ("chains", "num_warmup", "num_draws", "until"):
        if getattr(method, setting, None) != getattr(type(method), setting, None):
            raise CredoError(
                f"{name}({setting}={getattr(method, setting)}) within Gibbs(): a block takes one step a sweep, so give "
                f"{setting} to Gibbs() itself."
            )
    recipe = method.recipe(block.dim)
    return Inner(block, recipe.adaptive()), recipe
