"""A NumPyro program as a prior: its latent sites are parameters, its observed ones the outcome met on the way."""

import functools
import math
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, MaskedDistribution, Unit

from credo.adapters import enumeration
from credo.adapters.program import NEEDS_VALUES, Program, Sites, distribution_of
from credo.compiling import sound
from credo.model.dependence import dependencies
from credo.model.distributions import Scaled, flat_like, is_improper, transform_to, unwrapped
from credo.model.mended import log_prob
from credo.model.structure import Structure, somewhere
from credo.model.visit import AbstractPrior, Params, See, Value, Visited, at_index, origin
from credo.precision import abstract
from credo.status import CredoError


class NumPyroPrior(AbstractPrior):
    """``program`` and the parts its sites play.

    ``names``: continuous latent sites. ``discrete``: those summed out. ``outcomes``: observed sites, whose data come
    from the leaves ``outcome_leaves`` of the arguments. ``terms``: other terms of the log density. They are
    ``factors``, and so are latent sites under ``handlers.scale``, whose density is not the one they are drawn from.
    ``derived``: deterministic sites (those that depend on a discrete one have no single value and are left out).
    """

    program: Program
    names: tuple[str, ...] = eqx.field(static=True)
    discrete: tuple[str, ...] = eqx.field(static=True)
    outcomes: tuple[str, ...] = eqx.field(static=True)
    outcome_leaves: tuple[int, ...] = eqx.field(static=True)
    terms: tuple[str, ...] = eqx.field(static=True)
    factors: tuple[str, ...] = eqx.field(static=True)
    derived: tuple[str, ...] = eqx.field(static=True)
    plate_depth: int = eqx.field(static=True)

    def visit(self, value: Value, see: See, key=None) -> Visited:
        def give(name, distribution, index):
            if name not in self.discrete:
                return value(name, distribution, index)
            if key is None:
                return enumeration.stand_in(distribution)
            own = jax.random.fold_in(key, zlib.crc32(name.encode()))
            return distribution.sample(own if index is None else jax.random.fold_in(own, index))

        sites, _ = self.program.run(give)
        params = {name: sites[name]["value"] for name in self.names}
        for name in self.names:
            distribution = distribution_of(sites[name])
            if self.discrete:  # its log density is inside the sum over the discrete sites
                distribution = flat_like(distribution)
            see(name, distribution, params[name])

        def log_factor() -> Any:
            if self.discrete:
                return enumeration.log_density(self.program, params, self.plate_depth)
            terms = (log_prob(distribution_of(sites[name]), sites[name]["value"]) for name in self.terms)
            return sum((jnp.sum(term) for term in terms), start=jnp.zeros(()))

        return Visited(params, log_factor, None if self.discrete else self.outcome(sites))

    def densities(self, u):
        if self.discrete:
            raise CredoError(
                f"The prior of each parameter is not known apart: the program sums {self.discrete[0]!r} out of its "
                "density as a whole. Write the sum as a distribution, such as MixtureSameFamily."
            )
        return super().densities(u)

    def outcome(self, sites: Sites):
        """The distribution of the data in a trace, a dict of them if several sites are observed, None if none is."""
        found = {name: distribution_of(sites[name]) for name in self.outcomes}
        return next(iter(found.values())) if len(found) == 1 else found or None

    def recorded(self, params: Params) -> dict[str, Any]:
        if not self.derived:
            return {}
        sites, _ = self.program.run(self.given(params))
        return {name: jnp.asarray(sites[name]["value"]) for name in self.derived}

    def given(self, params: Params) -> Value:
        """The value of each latent site at ``params``."""

        def value(name, distribution, index):
            if name in self.discrete:
                return enumeration.stand_in(distribution)
            return at_index(params[name], index)

        return value

    def reads_outcomes(self) -> bool:
        """Whether a distribution of the outcomes changes with the outcomes, as that of an autoregression does: then no
        data can be drawn from it. Told by outcomes in reverse order, and all like the first.
        """
        arrays = list(self.program.arrays)
        before = _parameters(self, arrays)
        observed = [i for i, place in enumerate(self.program.places) if place in self.outcome_leaves]
        entries = [_entries(self, arrays, i) for i in observed]
        for change in (lambda v: v[::-1], lambda v: np.full_like(v, v[0])):
            others = list(arrays)
            for i, own in zip(observed, entries, strict=True):
                others[i] = np.array(arrays[i])
                others[i][own] = change(others[i][own])
            after = _parameters(self, others)
            if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True)):
                return True
        return False

    def data(self) -> dict[str, jax.Array]:
        """The observed values by site, with the shape of their log density's rows and events."""
        sites, _ = self.program.run(first_value)

        def full(name):
            value, shape = sites[name]["value"], sites[name]["fn"].shape()
            given = np.shape(value)
            try:
                value = jnp.broadcast_to(value, np.broadcast_shapes(given, shape))
            except ValueError as error:
                raise CredoError(
                    f"The observations at site {name!r} have shape {given} and its distribution has shape "
                    f"{shape}: give one row of data for each row of the distribution."
                ) from error
            if math.prod(given) > 1 and np.shape(value) != given:
                raise CredoError(
                    f"The observations at site {name!r} have shape {given} and its distribution has shape {shape}: "
                    f"together {np.shape(value)}, in which each observation counts several times. Give one row of data "
                    "for each row of the distribution (squeeze or index away an extra axis)."
                )
            return value.astype(int) if value.dtype == bool else value

        return {name: full(name) for name in self.outcomes}


@sound
def _parameters(prior: NumPyroPrior, arrays: list) -> list[jax.Array]:
    """Of the distributions of the outcomes, without masks, somewhere."""
    return _unmasked([distribution_of(_somewhere(prior, arrays)[name]) for name in prior.outcomes])


def _unmasked(tree) -> list[jax.Array]:
    def is_masked(node):
        return isinstance(node, MaskedDistribution)

    leaves = jax.tree.leaves(tree, is_leaf=is_masked)
    return [part for leaf in leaves for part in (_unmasked(leaf.base_dist) if is_masked(leaf) else [leaf])]


def _somewhere(prior: NumPyroPrior, arrays: list) -> Sites:
    structure = Structure.of(prior)
    params = prior.constrain(structure.unravel(somewhere(structure.dim)))
    program = eqx.tree_at(lambda program: program.arrays, prior.program, tuple(arrays))
    return program.run(prior.given(params))[0]


def _entries(prior: NumPyroPrior, arrays: list, i: int) -> np.ndarray:
    """Which entries of the i-th of ``arrays`` are observed: some of a table that holds inputs too. Of whole numbers
    all."""
    everything = np.full(np.shape(arrays[i]), True)
    if not np.issubdtype(np.asarray(arrays[i]).dtype, np.floating):
        return everything
    found = np.asarray(_slope(prior, arrays, jnp.asarray(arrays[i]), i)) != 0
    return found if found.any() else everything


@functools.partial(sound, static_argnames="i")
def _slope(prior: NumPyroPrior, arrays: list, values, i: int):
    def total(values):
        sites = _somewhere(prior, [*arrays[:i], values, *arrays[i + 1 :]])
        return sum(jnp.sum(jnp.nan_to_num(sites[name]["value"] * 1.0)) for name in prior.outcomes)

    return jax.grad(total)(values)


def first_value(name: str, distribution, index):
    """Some value of a latent site, to see the sites that follow."""
    if distribution.is_discrete:
        enumeration.check_site(name, distribution)
        return enumeration.stand_in(distribution)
    return origin(name, distribution)


def bind(fn: Callable, arguments: dict[str, Any]) -> NumPyroPrior:
    """Run the model abstractly and see which part each site plays. Call it in double precision."""
    program = _settled(fn, arguments)
    sites, asked = _look(program)
    latent = [name for name in asked if not sites[name]["fn"].is_discrete]
    discrete = [name for name in asked if sites[name]["fn"].is_discrete]
    is_unit = {
        name: isinstance(unwrapped(site["fn"]), Unit) for name, site in sites.items() if site["type"] == "sample"
    }
    observed = [name for name, unit in is_unit.items() if sites[name]["is_observed"] and not unit]
    derived = [name for name, site in sites.items() if site["type"] == "deterministic"]
    for name, site in sites.items():
        if site["type"] == "param" and not name.endswith("$params"):  # NumPyro's modules with random weights have those
            warnings.warn(
                f"The param site {name!r} keeps its initial value, as in NumPyro's samplers: make it a sample site to "
                "learn it.",
                stacklevel=4,
            )
    u = [abstract(asked[name]) for name in latent]
    drawn = [abstract(asked[name], sites[name]["value"].dtype) for name in discrete]
    names = [*observed, *derived, *latent]
    sources = dict(zip(names, dependencies(_flow(latent, discrete, names), u, drawn, program), strict=True))
    num_drawn = len(latent) + len(discrete)
    for name in latent:
        if sources[name] & set(range(len(latent), num_drawn)):
            raise CredoError(
                f"The support of site {name!r} depends on a discrete latent site: it has no fixed transform, so the "
                "discrete sites cannot be summed out. Give it a support that holds for all their values."
            )
    outcomes = [name for name in observed if not sources[name] & set(range(num_drawn))]
    places = program.places
    terms = tuple(name for name in is_unit if name not in asked and name not in outcomes)
    return NumPyroPrior(
        program=program,
        names=tuple(latent),
        discrete=tuple(discrete),
        outcomes=tuple(outcomes),
        outcome_leaves=tuple(sorted({places[i - num_drawn] for name in outcomes for i in sources[name]})),
        terms=terms,
        factors=(*terms, *(name for name in latent if _is_power(distribution_of(sites[name])))),
        derived=tuple(name for name in derived if not sources[name] & set(range(len(latent), num_drawn))),
        plate_depth=enumeration.check_plates(sites) if discrete else 0,
    )


def _is_power(distribution: Distribution) -> bool:
    return isinstance(distribution, Scaled) and not is_improper(distribution)


def _settled(fn: Callable, arguments: dict[str, Any]) -> Program:
    """As many arrays traced as the model's Python code allows: those whose values it reads stay constants."""
    program = Program(fn, arguments)
    if _is_traceable(program):
        return program
    traced: set[int] = set()
    for place in program.places:
        if _is_traceable(Program(fn, arguments, lambda i, place=place: i in {*traced, place})):
            traced.add(place)
    program = Program(fn, arguments, lambda i: i in traced)
    error = _untraceable(program)
    if error is not None:
        raise CredoError(
            "The NumPyro model's Python code asks for the value of a latent site, or of what is computed from one "
            f"({_place(error)}): a compiled program has none yet. Write jnp.where, or lax.cond, in place of if, and "
            "keep sizes and ranges to the data."
        ) from error
    return program


def _is_traceable(program: Program) -> bool:
    return _untraceable(program) is None


def _untraceable(program: Program) -> Exception | None:
    """What JAX says where Python code reads the value of something traced."""
    try:
        jax.eval_shape(lambda p: p.run(first_value) and None, program)
    except NEEDS_VALUES as error:
        return error
    return None


def _place(error: Exception) -> str:
    """The line of the model, as JAX names it, or else what it says first."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("from line ")), lines[0] if lines else type(error).__name__)


def _look(program: Program) -> tuple[Sites, dict[str, tuple[int, ...]]]:
    """(sites of an abstract run, unconstrained shape of each latent one)."""
    sites, shapes = {}, {}

    def look(program):
        found, asked = program.run(first_value)
        sites.update(found)
        for name in asked:
            site = found[name]
            transform = None if site["fn"].is_discrete else transform_to(site["fn"])
            shape = np.shape(site["value"])
            shapes[name] = shape if transform is None else tuple(transform.inverse_shape(shape))

    jax.eval_shape(look, program)
    return sites, shapes


def _flow(latent: list[str], discrete: list[str], names: list[str]) -> Callable:
    """(u, drawn, program) -> values of the sites ``names``, at positions of the latent and values of the discrete."""

    def flow(u, drawn, program):
        def value(name, distribution, index):
            if distribution.is_discrete:
                return at_index(drawn[discrete.index(name)], index)
            return transform_to(distribution)(at_index(u[latent.index(name)], index))

        found, _ = program.run(value)
        return [jnp.asarray(found[name]["value"]) for name in names]

    return flow
