"""An existing NumPyro model, as it is, as a Credo model (Phan, Pradhan & Jankowiak, 2019).

    from_numpyro(fn, x, y).given()        the whole call bound
    from_numpyro(fn).given(x, y)          calls fn(x, y)

Sites become parts of the target: latent ones are parameters, observed ones the likelihood, one factor a row of the
leading axis; deterministic ones are reported with the draws; ``numpyro.factor``, and "observations" that depend on
parameters, are log factors beside the prior. Subsampling plates take all their rows, discrete latent sites are summed
out, and ``numpyro.param`` sites keep their initial value, as in NumPyro's own samplers.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from credo.adapters.likelihood import NumPyroLikelihood, leaf_parameters, outcome_parameters, parameters, shown
from credo.adapters.program import Program, as_double, is_array
from credo.adapters.sites import NumPyroPrior, bind
from credo.compiling import sound
from credo.model.check import check_outcome
from credo.model.data import Levels, by_column, case_weights, check_order, column, column_name
from credo.model.model import Model
from credo.model.structure import Structure
from credo.model.target import Target
from credo.model.visit import AbstractPrior, Params, See, Value, Visited
from credo.precision import double, in_double
from credo.status import CredoError


def from_numpyro(fn: Callable, *args, **kwargs) -> "NumPyroModel":
    """The NumPyro model ``fn`` as a Credo model, with the arguments of its call, some of them, or none.

    What is not given here is given to ``.given(x, y)``. Several inputs, there and for prediction, are a dict by
    parameter name, one is given bare; to predict, the model is run with ``y=None``.

    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> def line(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    ...     numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    >>> from_numpyro(line).given(np.arange(3.0), np.ones(3)).dim
    1
    """
    if not callable(fn):
        raise CredoError(f"from_numpyro takes a model, a function with numpyro.sample statements; got {fn!r}.")
    args = [_plain(value) for value in args]
    kwargs = {name: _plain(value) for name, value in kwargs.items()}
    try:
        arguments = inspect.signature(fn).bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise CredoError(f"The arguments do not fit the model's signature {inspect.signature(fn)}: {error}.") from error
    return NumPyroModel(fn, dict(arguments))


class NumPyroModel(Model):
    """A model whose prior and likelihood are read off a NumPyro program once the arguments of its call are there.

    ``input_name``: the parameter of the program that takes bare inputs, None where no single one does.
    """

    prior: "NumPyroPrior | Unbound"
    input_name: str | None = eqx.field(static=True)

    def __init__(
        self, fn: Callable, arguments: dict[str, Any], input_name: str | None = None, *, is_final: bool = False
    ):
        """``is_final``: an argument that is missing stays so (without y nothing is observed)."""
        with double():
            is_bound = is_final or _is_complete(fn, arguments)
            self.prior = bind(fn, arguments) if is_bound else Unbound(Program(fn, arguments))
            self.structure = Structure.of(self.prior) if is_bound else Structure((), None, ())
        bound = self.prior if isinstance(self.prior, NumPyroPrior) else None
        self.input_name = input_name or (bound and _sole_input(bound))
        self.likelihood = None
        if bound is not None and bound.outcomes and not bound.discrete:
            self.likelihood = NumPyroLikelihood(bound, self.input_name)
        self.derived_functions = tuple((name, None) for name in bound.derived) if bound else ()
        self.group_items = ()
        self.log_factor = self.start = None

    @property
    def without_likelihood(self) -> str:
        prior = self.prior
        if isinstance(prior, NumPyroPrior) and prior.discrete:
            return f"it sums out {', '.join(prior.discrete)}, which leaves one density of all rows"
        if isinstance(prior, NumPyroPrior) and prior.terms:
            return (
                f"its data enter by log factors alone ({', '.join(prior.terms)}), which are no distribution of them: "
                "an outcome is given by obs="
            )
        return super().without_likelihood

    @property
    def unlike_its_prior(self) -> str | None:
        prior = self.prior
        if isinstance(prior, NumPyroPrior) and prior.terms:
            return f"its density has log factors ({', '.join(prior.terms)}), which nothing is drawn from"
        if isinstance(prior, NumPyroPrior) and prior.discrete and prior.outcomes:
            return self.without_likelihood
        return None

    def given(self, x=None, y=None, *, weights=None, missing: Literal["drop", "impute"] | None = None) -> Target:
        """The posterior: ``x`` and ``y`` are the arguments of the program that are not bound yet, in this order.

        On a model that has all its arguments they take the place of its inputs and its observations. ``weights``:
        (N,), each the number of times its row counts. ``missing`` is for Credo's own models: a NumPyro program masks
        missing outcomes or has sites for them.
        """
        if missing is not None:
            raise CredoError(
                f"missing={missing!r} is for Credo's own models: in NumPyro, mask the missing outcomes "
                "(numpyro.handlers.mask) or make them a sample site."
            )
        check_order(x=x, y=y, weights=weights)
        x, y = _converted(x, "x"), _converted(y, "y")
        if isinstance(self.prior, NumPyroPrior) and x is None and y is None:
            return _target(self, self.prior, x, weights)
        arguments, input_name = self._with_data(x, y)
        _check_arguments(self.prior.program.fn, arguments)
        try:
            model = NumPyroModel(self.prior.program.fn, arguments, input_name, is_final=True)
        except CredoError:
            raise
        except (TypeError, ValueError) as error:
            if isinstance(x, Mapping) and input_name is not None:
                raise CredoError(
                    f"The NumPyro model failed with the table x ({', '.join(map(str, x))}) as its argument "
                    f"{input_name!r} ({error}): give an array, or inputs by the names of its arguments, "
                    f"{shown(self.prior.program.fn)}."
                ) from error
            lengths = {name: len(a) for name, a in (("x", x), ("y", y)) if isinstance(a, np.ndarray) and a.ndim}
            if len(set(lengths.values())) < 2:
                raise
            raise CredoError(
                f"The data differ in length ({lengths}), and the model failed on them: {error}."
            ) from error
        assert isinstance(model.prior, NumPyroPrior)
        return _target(model, model.prior, x, weights)

    def _with_data(self, x, y) -> tuple[dict[str, Any], str | None]:
        """The arguments with ``x`` and ``y`` in their places, and the place of ``x``."""
        program, prior = self.prior.program, self.prior
        arguments = program.arguments
        free = [name for name in parameters(program.fn) if name not in arguments]
        if y is not None:
            bound = outcome_parameters(prior) if isinstance(prior, NumPyroPrior) else []
            if isinstance(y, Mapping) and y and set(y) <= {*free, *bound}:  # several outcomes, each by its argument
                arguments |= dict(y)
                return self._with_inputs(arguments, [name for name in free if name not in y], x)
            named = [name for name in (*bound, "y", "obs") if name in (*free, *bound)]
            own = inspect.signature(program.fn).parameters
            optional = [name for name in free[x is not None :] if own[name].default is None]
            if not named and len(optional) > 1:
                raise CredoError(
                    f"y may be {' or '.join(map(repr, optional))} of the NumPyro model: say which, as in "
                    f"given(x, {{{optional[0]!r}: y}}), and the others stay None, or are bound by from_numpyro(fn, …)."
                )
            place = next(iter(named), free[-1] if free else None)
            if place is None:
                raise CredoError(
                    f"The NumPyro model has no argument left for y: its parameters are {shown(program.fn)}."
                )
            arguments[place] = y
            free = [name for name in free if name != place]
        return self._with_inputs(arguments, free, x)

    def _with_inputs(self, arguments: dict[str, Any], free: list[str], x) -> tuple[dict[str, Any], str | None]:
        program = self.prior.program
        if x is None:
            return arguments, self.input_name
        if isinstance(x, Mapping) and x and set(x) <= set(free):  # inputs, each by its argument
            return {**arguments, **x}, None
        place = free[0] if free else self.input_name
        if place is None:
            raise CredoError(
                f"The NumPyro model has no single argument for x: its parameters are {shown(program.fn)}. Bind all "
                "arguments in from_numpyro(fn, ...) and call given() without data."
            )
        arguments[place] = x
        return arguments, place


class Unbound(AbstractPrior):
    """A program that waits for the rest of its arguments."""

    program: Program

    def __init__(self, program: Program):
        self.program = program

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def factors(self) -> tuple[str, ...]:
        return ()

    def visit(self, value: Value, see: See, key=None) -> Visited:
        raise CredoError(
            "The NumPyro model waits for data: call given(x, y) first (its .model is complete), or bind all arguments "
            "in from_numpyro(fn, ...)."
        )

    def recorded(self, params: Params) -> dict[str, Any]:
        return {}


def _target(model: NumPyroModel, prior: "NumPyroPrior", x, weights) -> Target:
    data = _data(prior) if model.likelihood is not None else {}
    if not prior.outcomes and not prior.terms:
        _check_observed(prior.program)
    y = None if not data else next(iter(data.values())) if len(data) == 1 else data
    lengths = [len(values) if np.ndim(values) else 1 for values in data.values()]
    size = 0 if not data else lengths[0] if len(set(lengths)) == 1 else sum(lengths)
    num_terms, found = (size, {}) if y is None else check_outcome(_joint_outcome, model.structure, prior, y)
    weights = case_weights(weights)
    if weights is not None and (num_terms != size or len(weights) != size):
        raise CredoError(
            f"There are {len(weights)} weights and {num_terms} factors in the likelihood of {size} rows: give one "
            "weight a row, and a likelihood with one factor a row."
        )
    is_arrays = all(is_array(leaf) for leaf in jax.tree.leaves(x))
    return Target(
        model.as_of_now(),
        x if is_arrays else None,
        y,
        weights,
        model.structure,
        size,
        num_terms,
        model.head_of(found, x),
        Levels(),
    )


def _check_observed(program: Program) -> None:
    """CredoError where a program observes nothing, and has an argument that was left None: all is then unknown."""
    own = inspect.signature(program.fn).parameters
    left = [name for name, parameter in own.items() if parameter.default is None and name not in program.arguments]
    if left:
        raise CredoError(
            f"The NumPyro model observes nothing, and its argument {left[-1]!r} was left None: the posterior would be "
            f"the prior. Give y to given(x, y), or {left[-1]}=… to from_numpyro(fn, …)."
        )


def _check_arguments(fn: Callable, arguments: Mapping[str, Any]) -> None:
    """CredoError where one that has no default is not there."""
    own = inspect.signature(fn).parameters
    lacking = [n for n in parameters(fn) if own[n].default is inspect.Parameter.empty and n not in arguments]
    if lacking:
        raise CredoError(
            f"The NumPyro model {shown(fn)} lacks its argument {lacking[0]!r}: bind it, from_numpyro(fn, "
            f"{lacking[0]}=…), or give all that are left in a dict, given({{{lacking[0]!r}: …, …}}, y)."
        )


def _joint_outcome(u, prior: NumPyroPrior):
    return prior.joint(u)[2]


@in_double
def _data(prior: NumPyroPrior) -> dict[str, Any]:
    return _jitted_data(prior)


@sound
def _jitted_data(prior: NumPyroPrior):
    return prior.data()


def _is_complete(fn: Callable, arguments: dict[str, Any]) -> bool:
    """Whether every argument is there but those whose default is a value."""
    return all(
        name in arguments or not (parameter.default is None or parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def _sole_input(prior: NumPyroPrior) -> str | None:
    observed = outcome_parameters(prior)
    owners = leaf_parameters(prior.program)
    names = {owners[i] for i in prior.program.places} - set(observed)
    return names.pop() if len(names) == 1 else None


def _plain(data):
    """Tables as dicts of columns, series as arrays."""
    found: Any = by_column(data)
    return found.to_numpy() if hasattr(found, "to_numpy") else found


def _converted(data, root: str):
    """Plain data in double precision; NaN or infinite inputs are refused."""
    data = {name: _plain(each) for name, each in data.items()} if isinstance(data, dict) else _plain(data)

    def convert(path, leaf):
        if not is_array(leaf):
            return leaf
        values = np.asarray(leaf)
        is_input = root == "x" and values.dtype.kind == "f"  # y may hold anything where it is masked
        return column(column_name(path, root), values) if is_input else as_double(values)

    return jax.tree_util.tree_map_with_path(convert, data)
