"""The observed sites of a NumPyro program as a likelihood, at the inputs that are bound or at new ones."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from credo.adapters.program import Program, first_line
from credo.adapters.sites import NumPyroPrior
from credo.model.structure import Structure
from credo.status import CredoError


class NumPyroLikelihood(eqx.Module):
    """(params, x) -> the distribution of the observed sites. ``x`` None: at the arguments that are bound."""

    prior: NumPyroPrior
    input_name: str | None = eqx.field(static=True)

    def __call__(self, params, x):
        prior = self.prior
        if x is None:
            sites, _ = prior.program.run(prior.given(params))
            return prior.outcome(sites)
        try:
            sites, _ = prior.program.run(self._value(params), self._inputs(x), prior.outcome_leaves)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, CredoError):
                raise
            own = [leaf.name for leaf in Structure.of(prior).leaves if leaf.shape[:1] in self._lengths()]
            if own and self._runs_without_outcomes(params):
                raise CredoError(
                    f"The NumPyro model does not run at these inputs ({first_line(error)}): {own[0]!r} has one value "
                    "for each row of the fit, and new rows have none. Predict at the rows of the fit, or sum it out of "
                    "the model."
                ) from error
            raise CredoError(
                f"The NumPyro model does not run at these inputs without {self._outcomes()} ({first_line(error)}): let "
                f"it use {self._outcomes()} only in obs=, and take its sizes from the inputs."
            ) from error
        missing = [name for name in prior.outcomes if name not in sites]
        if missing:
            raise CredoError(
                f"Without {self._outcomes()} the NumPyro model has no site {missing[0]!r}, so it cannot predict: write "
                f"numpyro.sample({missing[0]!r}, ..., obs=y) outside of any `if y is not None`."
            )
        return prior.outcome(sites)

    def _runs_without_outcomes(self, params) -> bool:
        """At the rows of the fit."""
        try:
            self.prior.program.run(self._value(params), {}, self.prior.outcome_leaves)
        except (TypeError, ValueError, AttributeError, IndexError):
            return False
        return True

    def _lengths(self) -> set[tuple[int, ...]]:
        """Of the outcomes."""
        return {np.shape(v)[:1] for v in jax.tree.leaves(jax.eval_shape(self.prior.data))} - {(), (1,)}

    def _inputs(self, x) -> dict[str, Any]:
        names = parameters(self.prior.program.fn)
        known = {name: x[name] for name in names if name in x} if isinstance(x, dict) else {}
        if self.input_name is not None and len(known) < len(x if isinstance(x, dict) else [x]):
            return {self.input_name: x}  # which may be a table
        wanted = self._inputs_by_row()
        if not known:
            raise CredoError(
                "The NumPyro model has no single input: give new ones as a dict of its arguments "
                f"({', '.join(wanted or names)})."
            )
        lacking = [name for name in wanted if name not in known]
        if lacking:
            raise CredoError(
                f"x lacks {lacking[0]!r}; the NumPyro model was fitted with {', '.join(wanted)}. Give them all."
            )
        return known

    def _inputs_by_row(self) -> list[str]:
        """The arguments with an entry for each row of the fit, but the outcomes."""
        lengths, observed = self._lengths(), outcome_parameters(self.prior)
        arguments = self.prior.program.arguments
        return [
            name
            for name in parameters(self.prior.program.fn)
            if name in arguments and name not in observed
            if any(np.shape(leaf)[:1] in lengths for leaf in jax.tree.leaves(arguments[name]))
        ]

    def _outcomes(self) -> str:
        return ", ".join(outcome_parameters(self.prior)) or "its observations"

    def _value(self, params):
        known = self.prior.given(params)

        def value(name, distribution, index):
            if name in params:
                return known(name, distribution, index)
            if name not in self.prior.outcomes:
                raise CredoError(f"Site {name!r} appears only where the model predicts, so it has no posterior.")
            # nothing may depend on the value of what is predicted; NaN shows where something does
            if distribution.is_discrete:
                return distribution.support.feasible_like(jnp.zeros(distribution.shape(), int))
            return jnp.full(distribution.shape(), jnp.nan)

        return value


def parameters(fn: Callable) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, parameter in inspect.signature(fn).parameters.items() if parameter.kind not in kinds]


def shown(fn: Callable) -> str:
    return ", ".join(parameters(fn)) or "none"


def outcome_parameters(prior: NumPyroPrior) -> list[str]:
    """The parameters of the program whose leaves are observed."""
    return list(dict.fromkeys(leaf_parameters(prior.program)[i] for i in prior.outcome_leaves))


def leaf_parameters(program: Program) -> list[str]:
    """For each leaf of the arguments, the parameter it belongs to."""
    return [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(program.arguments)]
