"""What is believed: a prior over named parameters and a likelihood of one datum."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from credo.arguments import as_key, check_count, unmasked
from credo.compiling import sound
from credo.model.captured import captured
from credo.model.check import check_derived, check_likelihood, check_log_density, explained
from credo.model.data import Levels, Rows, case_weights, check_order, inputs, num_rows, outcomes
from credo.model.distributions import broadcast, is_distribution, unscaled
from credo.model.draws import check_drawable, draw
from credo.model.heads import head_of
from credo.model.log_density import Function, LogFactor, flat_prior
from credo.model.missing import Missing, check_factors, check_request, num_partly, observed_rows, select, whole
from credo.model.prior import Prior, argument_names
from credo.model.shared import shared
from credo.model.source import FEW, Files, Loader, Source, is_mapped
from credo.model.structure import Structure
from credo.model.target import Target
from credo.model.user_head import AnyHead
from credo.model.visit import AbstractPrior
from credo.precision import in_double
from credo.status import CredoError


class Model(eqx.Module):
    """A differentiable Bayesian model.

    ``prior``: a pytree of numpyro distributions; in a dict a callable names the earlier parameters it depends on.
    ``likelihood(params, x)``: p(y | x, params) as a numpyro distribution with batch_shape (M,), one factor a row.
    ``derived``: functions of named parameters, reported beside them in draws and summaries.
    ``groups``: input column -> the group-level parameter it indexes; at prediction an unseen level is drawn from that
    parameter's conditional prior. The column reaches the likelihood as codes 0 … L − 1.
    What these functions read beside their arguments, such as globals, is read anew by each ``given`` and ``fit``; a
    prediction that would read it anew after a change is refused.

    >>> import numpy as np, numpyro.distributions as dist
    >>> model = Model(
    ...     prior={"w": dist.Normal(0.0, 1.0).expand([2])},
    ...     likelihood=lambda params, x: dist.Bernoulli(logits=x @ params["w"]),
    ... )
    >>> model.given(np.ones((3, 2)), np.array([0, 1, 1])).dim
    2
    """

    prior: AbstractPrior
    likelihood: Callable | None
    log_factor: Callable | None
    derived_functions: tuple[tuple[str, Callable | None], ...] = eqx.field(static=True)
    group_items: tuple[tuple[str, str], ...] = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)
    start: Any
    captured: str = eqx.field(static=True, default="", init=False)  # a digest of what its functions read outside
    weights_name: ClassVar[str | None] = None  # of the parameter that a network's weights are

    def __init__(
        self,
        prior,
        likelihood: Callable | None,
        *,
        derived: Mapping[str, Callable | None] | None = None,
        groups: Mapping[str, str] | None = None,
    ):
        self.prior = prior if isinstance(prior, AbstractPrior) else Prior(prior)
        self.likelihood = None if likelihood is None else Function(likelihood)
        self.log_factor = None
        self.derived_functions = tuple((name, shared(function)) for name, function in (derived or {}).items())
        self.group_items = tuple((groups or {}).items())
        self.structure = Structure.of(self.prior)
        self.start = None
        self._check_names()

    @classmethod
    def from_log_density(
        cls,
        log_density: Callable,
        support: Mapping[str, Any],
        shape: Mapping[str, tuple[int, ...]] | None = None,
        *,
        init: Mapping[str, Any] | None = None,
        derived: Mapping[str, Callable] | None = None,
    ) -> "Model":
        """A model from a bare log density of a dict of constrained parameters, without any Jacobian in it.

        ``log_density(params)``, or ``log_density(params, data)`` with ``.given(data)``, in jax.numpy; it returns one
        number. ``support``: name -> numpyro constraint, or a callable of earlier names that returns one.
        ``shape``: name -> shape in the user's space, () where absent. ``init``: parameters to start from.
        Raises CredoError where one of these cannot be right; ``given`` evaluates the density once, abstractly.

        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> def log_density(params, data):
        ...     return jnp.sum(dist.Exponential(params["rate"]).log_prob(data)) - params["rate"]
        >>> model = Model.from_log_density(log_density, {"rate": dist.constraints.positive})
        >>> model.given(np.array([0.5, 2.0])).dim
        1
        """
        if not callable(log_density):
            raise CredoError(f"The log density is a function of a dict of parameters; got {log_density!r}.")
        for name, given in (("support", support), ("shape", shape or {}), ("init", init or {})):
            if not isinstance(given, Mapping):
                raise CredoError(
                    f"{name} is a dict by parameter name, such as support={{'rate': constraints.positive}}; got "
                    f"{given!r}."
                )
        shape = dict(shape or {})
        unknown = [name for name in (*shape, *(init or {})) if name not in support]
        if unknown:
            raise CredoError(f"{unknown[0]!r} has a shape or an initial value but no support: name it in support=.")
        prior = {name: flat_prior(value, tuple(shape.get(name, ()))) for name, value in support.items()}
        model = cls(Prior(prior), None, derived=derived)
        factor = LogFactor(log_density)
        start = None if init is None else {name: np.asarray(init[name], np.float64) for name in init}
        return eqx.tree_at(lambda m: (m.log_factor, m.start), model, (factor, start), is_leaf=lambda leaf: leaf is None)

    @property
    def without_likelihood(self) -> str:
        """Why there is none, where ``likelihood`` is None."""
        if self.log_factor is not None:
            return "it is a bare log density"
        return "it has none, or was loaded without its model (give it: credo.load(path, model))"

    @property
    def unlike_its_prior(self) -> str | None:
        """Why draws of the prior and the likelihood do not have this density; None where they do."""
        return "it is a bare log density" if self.log_factor is not None else None

    @property
    def derived(self) -> dict[str, Callable]:
        return {name: function for name, function in self.derived_functions if function is not None}

    @property
    def groups(self) -> dict[str, str]:
        return dict(self.group_items)

    @property
    def group_rows(self) -> dict[str, int]:
        """How many rows each parameter has that a group column indexes."""
        indexed = self.groups.values()
        return {leaf.name: leaf.shape[0] for leaf in self.structure.leaves if leaf.name in indexed}

    def given(self, x=None, y=None, *, weights=None, missing: Literal["drop", "impute"] | None = None) -> Target:
        """The posterior of this model given data: a ``Target``.

        ``x``: None, an array (N, …), a pytree of arrays with a common leading axis, or a DataFrame; it is handed to
        the likelihood as it is (a DataFrame as a dict of columns); or a ``credo.Loader``, alone, for data in batches
        or out of memory. ``np.memmap`` arrays that do not fit into memory are read batch by batch. ``y``: (N, …).
        ``weights``: (N,), each the number of times its datum counts. N comes from the data.
        ``missing``: what to do with rows whose outcome is NaN or None. ``None`` refuses them; "drop" leaves them out,
        and the verdict says how many; "impute" also reports draws of their outcomes as ``y_missing``. The posterior of
        the parameters is the same, see ``model/missing.py``. Both need one factor a row.
        Raises CredoError where the data cannot be right.
        """
        check_request(self, missing)
        if isinstance(x, Loader):
            if not (y is None and weights is None and missing is None):
                raise CredoError("A Loader brings y and weights with it: call given(loader), with nothing beside it.")
            return self._given_loader(x)
        if is_mapped((x, y, weights)) and y is not None and missing is None and self.log_factor is None:
            loader = Loader(Rows(x, y, weights))
            if not loader.is_in_memory:
                return self._given_loader(loader)
        if self.log_factor is not None:
            return self._given_data(x, y, weights, missing)
        if y is not None:
            self._check_groups(x)
            if self.likelihood is None:
                raise CredoError(
                    "This model has no likelihood, so y says nothing about it: write Model(prior, likelihood)."
                )
        elif weights is not None:
            raise CredoError("The weights say how often each datum counts, and there are no data: give y too.")
        check_order(x=x, y=y, weights=weights)
        x, levels = inputs(x, self.groups, rows=self.group_rows)
        observed = None
        if y is not None and missing is not None:
            y, observed = observed_rows(y, missing)
        elif y is not None:
            y = outcomes(y)
        weights = case_weights(weights)
        num_rows(x, y, weights)
        self._check_levels(x, levels)
        if observed is None:
            return self._target(x, y, weights, levels)
        return self._given_observed(x, y, weights, levels, observed, missing == "impute")

    def _given_loader(self, loader: Loader) -> Target:
        """The target of a loader's rows, which are looked at block by block."""
        if self.log_factor is not None or self.likelihood is None or self.group_items:
            raise CredoError(
                "A Loader gives rows (x, y) to a model of a prior and a likelihood of each row, without groups: write "
                "Model(prior, likelihood), or give arrays."
            )
        rows = loader.rows()
        if loader.is_in_memory:
            return self.given(rows.x, rows.y, weights=rows.weights)
        files, first, start = Files(rows), None, 0
        for block in files.blocks():
            try:
                found = self.given(block.x, block.y, weights=block.weights)
            except CredoError as error:
                counted = f" (Rows are counted from row {start:,} of the files, where this block of them begins.)"
                raise CredoError(f"{error}{counted if start else ''}") from error
            start += found.size
            if found.num_terms != found.size:
                raise CredoError("The likelihood is joint (one factor for all rows), so that no batch of it exists.")
            first = found if first is None else first
        assert first is not None
        size = num_rows(rows.x, rows.y, rows.weights)
        few = files.read(np.arange(min(FEW, size)))
        return dataclasses.replace(
            first,
            x=few.x,
            y=few.y,
            weights=few.weights,
            size=size,
            num_terms=size,
            source=Source(files),
            rows_at_once=256,
        )

    def _target(self, x, y, weights, levels: Levels) -> Target:
        size = num_rows(x, y, weights)
        num_terms, head = (size, None) if y is None else check_likelihood(self, x, y)
        if weights is not None and num_terms != size:
            raise CredoError(
                f"The likelihood, or that of one outcome, gives one density of all {size} rows together, and weights= "
                "counts rows: a row of a joint density has no weight of its own. Leave weights out, or give a density "
                "a row."
            )
        return Target(self.as_of_now(), x, y, weights, self.structure, size, num_terms, head, levels)

    def _given_observed(self, x, y, weights, levels: Levels, observed: np.ndarray, is_imputed: bool) -> Target:
        """The target of the rows that have an outcome, with the others beside it."""
        lacking = np.flatnonzero(~observed)
        kept = select((x, y, weights), observed)
        try:
            target = self._target(kept[0], whole(kept[1]), kept[2], levels)
        except CredoError as error:
            if not lacking.size:
                raise
            raise CredoError(f"{error} Rows are counted without the {len(lacking)} that have no outcome.") from error
        if not lacking.size:
            return target
        check_factors(target, x, observed)
        missing = Missing(lacking, select(x, lacking), is_imputed, num_partly(select(y, lacking)))
        return dataclasses.replace(target, missing=missing)

    def _given_data(self, data, y, weights, missing) -> Target:
        """The target of a log density of parameters and data."""
        if not (y is None and weights is None and missing is None):
            raise CredoError(
                "A model from a log density takes its data as one argument and knows no y, weights or missing: put all "
                "of it together, as given({'x': x, 'y': y}), and use it in log_density(params, data)."
            )
        assert isinstance(self.log_factor, LogFactor)
        self.log_factor.check(data)
        data = jax.tree.map(lambda leaf: np.asarray(unmasked(leaf)).view(), data)  # JAX knows arrays by their identity
        check_log_density(self, data)
        return Target(self.as_of_now(), data, None, None, self.structure, 0, 0, None, Levels())

    def head_of(self, outcome, x) -> AnyHead | None:
        """The head of the likelihood's distribution at inputs ``x``, arrays or abstract ones; None where unknown."""
        return head_of(outcome)

    def as_of_now(self) -> "Model":
        """The model, of which no program serves that read other values from outside (``model/captured.py``)."""
        now = captured(self)
        if now == self.captured:
            return self
        model = copy.copy(self)
        object.__setattr__(model, "captured", now)
        return model

    def _check_levels(self, x, levels: Levels) -> None:
        for column, parameter in self.group_items:
            (rows, *_) = next(leaf.shape for leaf in self.structure.leaves if leaf.name == parameter)
            if x is not None and len(levels.levels[column]) > rows:
                raise CredoError(
                    f"Column {column!r} has {len(levels.levels[column])} levels but parameter {parameter!r} has "
                    f"{rows} rows: expand its prior to {len(levels.levels[column])}."
                )

    def _check_groups(self, x) -> None:
        if x is None and self.group_items:
            raise CredoError(
                f"The model groups by column {self.group_items[0][0]!r}, which the inputs lack: give x as a DataFrame "
                "or a dict of columns that has it."
            )

    @in_double
    def sample_prior(self, key, n: int):
        """``n`` draws of the parameters from the prior, derived quantities included: arrays (n, *shape)."""
        return _draw_parameters(self.as_of_now(), _split(key, n))

    @in_double
    def sample_prior_predictive(self, key, x, n: int):
        """``n`` data sets drawn from prior and likelihood at inputs ``x``: (n, M, …)."""
        if self.likelihood is None:
            raise CredoError(f"This model has no likelihood to draw data from: {self.without_likelihood}.")
        check_drawable(self)
        self._check_groups(x)
        x, _ = inputs(x, self.groups, rows=self.group_rows)
        size = None if x is None else num_rows(x, None, None)
        with explained("The likelihood", self.structure, x):
            drawn = _draw_data(self.as_of_now(), x, _split(key, n), size)
        for leaf in jax.tree.leaves(drawn):
            if size is not None and leaf.shape[1:2] != (size,):
                raise CredoError(
                    f"The likelihood drew data of shape {leaf.shape[1:]} for {size} rows of x: a parameter with one "
                    "entry a row must be indexed by a column of x, and columns of one row be .to_event(1)."
                )
        return drawn

    def draw_outcome(self, key, params, x, like=None):
        """Data drawn from p(y | x, params): in the structure of y, each datum once whatever its weight.

        ``like``: y, or how many rows there are. A likelihood of fewer, such as that of one row, is that of each.
        """
        likelihood: Any = self.likelihood
        flat, structure = jax.tree.flatten(unscaled(likelihood(params, x)), is_leaf=is_distribution)
        keys = jax.random.split(key, len(flat))
        likes = jax.tree.leaves(like) if isinstance(like, Mapping) else [like] * len(flat)
        drawn = [draw(broadcast(d, like), k) for d, k, like in zip(flat, keys, likes, strict=True)]
        return jax.tree.unflatten(structure, drawn)

    def report(self, params) -> dict[str, Any]:
        """The parameters by leaf name, then the derived quantities."""
        named = self.prior.leaves(params)
        derived = {name: self.derive(function, params) for name, function in self.derived.items()}
        return {**named, **self.prior.recorded(params), **derived}

    def derive(self, function: Callable, params):
        """``function`` of the parameters that its arguments name."""
        source = params if self.prior.names is not None else self.prior.leaves(params)
        return jnp.asarray(function(**{name: source[name] for name in argument_names(function)}))

    def _check_names(self) -> None:
        names = [leaf.name for leaf in self.structure.leaves]
        known = self.prior.names or tuple(names)
        for name, function in self.derived.items():
            if not callable(function):
                raise CredoError(f"Derived quantity {name!r} is a function of named parameters; got {function!r}.")
            if name in names:
                raise CredoError(f"Derived quantity {name!r} has the name of a parameter: rename it.")
            unknown = [a for a in argument_names(function) if a not in known]
            if unknown:
                raise CredoError(f"Derived quantity {name!r} names {unknown[0]!r}, which is no parameter of the prior.")
            check_derived(self, name, function)
        for column, parameter in self.group_items:
            shapes = {leaf.name: leaf.shape for leaf in self.structure.leaves}
            if not shapes.get(parameter):
                raise CredoError(
                    f"groups maps column {column!r} to {parameter!r}, which is not a parameter with a row a level: "
                    f"the prior has {', '.join(names)}."
                )


@sound
def _draw_parameters(model: Model, keys):
    return jax.vmap(lambda key: model.report(model.prior.sample(key)[0]))(keys)


@functools.partial(sound, static_argnames="size")
def _draw_data(model: Model, x, keys, size: int | None):
    def draw(key):
        k_params, k_data = jax.random.split(key)
        return model.draw_outcome(k_data, model.prior.sample(k_params)[0], x, size)

    return jax.vmap(draw)(keys)


def _split(key, n: int):
    check_count(n)
    return jax.random.split(as_key(key), n)
