"""The curvature A = −∇² log p(u, D) at the mode, exact or Gauss-Newton.

Gauss-Newton (Schraudolph 2002) keeps of the likelihood's curvature Σᵢ Jᵢᵀ Fᵢ Jᵢ, with Jᵢ the Jacobian of the natural
outputs z of datum i and Fᵢ = −E[∂² log p(yᵢ | z)] their Fisher information, and leaves out the curvature of z(u). It is
never negative, and equals the Hessian where z is linear in u and p(y | z) in canonical form. The prior's curvature is
exact either way.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.products import linear_ggn, second_order
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.subproblem import columns, diagonal
from credo.model.distributions import Scaled
from credo.model.target import Target
from credo.status import CredoError


@runtime_checkable
class Curvature(Protocol):
    """Which second derivatives count."""

    def check(self, target: Target) -> None:
        """CredoError where the target lacks what this curvature needs."""
        ...

    def matrix(
        self, objective: Objective, target: Target, optimum: Optimum, chunk: int
    ) -> Float[np.ndarray, "dim dim"]: ...

    def diagonal(self, objective: Objective, target: Target, optimum: Optimum, chunk: int) -> Float[np.ndarray, " dim"]:
        """The diagonal of ``matrix``, which is not formed."""
        ...


@dataclass(frozen=True)
class ExactHessian:
    """The Hessian itself: it can show a saddle."""

    def check(self, target: Target) -> None:
        pass

    def matrix(self, objective, target, optimum, chunk):
        if optimum.curvature is not None:  # the optimiser formed it
            return optimum.curvature
        return np.asarray(_hessian(objective.function, columns, chunk, objective.args, optimum.position))

    def diagonal(self, objective, target, optimum, chunk):
        if optimum.curvature is not None:
            return np.diagonal(optimum.curvature).copy()
        return np.asarray(_hessian(objective.function, diagonal, chunk, objective.args, optimum.position))


@dataclass(frozen=True)
class GaussNewton:
    """The generalised Gauss-Newton matrix of the likelihood plus the Hessian of the prior.

    Needs a likelihood whose natural outputs are known: Normal, StudentT, Bernoulli, Binomial, Categorical, Poisson,
    Exponential, one scalar or class a row.
    """

    def check(self, target: Target) -> None:
        if target.y is None or target.model.likelihood is None:
            raise CredoError("Gauss-Newton needs a likelihood, and this target has none: use curvature=ExactHessian().")
        if target.head is None:
            raise CredoError(
                "Gauss-Newton needs the natural outputs of the likelihood, and they are not known for this one: use "
                "curvature=ExactHessian(), or one scalar Normal, StudentT, Bernoulli, Binomial, Categorical, Poisson "
                "or Exponential outcome a row."
            )

    def matrix(self, objective, target, optimum, chunk):
        return np.asarray(_gauss_newton(objective.log_prior, columns, chunk, objective.args, target, optimum.position))

    def diagonal(self, objective, target, optimum, chunk):
        return np.asarray(_gauss_newton(objective.log_prior, diagonal, chunk, objective.args, target, optimum.position))


@functools.partial(jax.jit, static_argnames=("function", "form", "chunk"))
def _hessian(function: Callable, form: Callable, chunk: int, args, u):
    *_, product = second_order(lambda v: function(args, v), u)
    return form(lambda v: -product(v), u, chunk)


@functools.partial(jax.jit, static_argnames=("log_prior", "form", "chunk"))
def _gauss_newton(log_prior: Callable, form: Callable, chunk: int, args, target: Target, u):
    head, likelihood = target.head, target.model.likelihood
    assert head is not None  # checked
    assert likelihood is not None

    def outputs(v) -> Float[Array, "M K"]:
        return head.split(target.likelihood_distribution(target.constrain(v), target.x))

    def fisher(z: Float[Array, "M K"]) -> Float[Array, "M K K"]:
        distribution = likelihood(target.constrain(u), target.x)
        weights = jnp.ones(z.shape[:1], z.dtype) if target.weights is None else jnp.asarray(target.weights)
        if isinstance(distribution, Scaled):
            weights, distribution = weights * distribution.scale, distribution.base_dist
        return weights[:, None, None] * head.fisher(z, distribution)

    of_likelihood = linear_ggn(outputs, fisher, u)
    *_, of_prior = second_order(lambda v: log_prior(args, v), u)
    return form(lambda v: of_likelihood(v) - of_prior(v), u, chunk)
