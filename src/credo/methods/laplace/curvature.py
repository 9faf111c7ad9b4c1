"""The curvature A = −∇² log p(u, D) at the mode: exact, Gauss-Newton, or by outer products of gradients.

Gauss-Newton (Schraudolph 2002) keeps of the likelihood's curvature Σᵢ Jᵢᵀ Fᵢ Jᵢ, with Jᵢ the Jacobian of the natural
outputs z of datum i and Fᵢ = −E[∂² log p(yᵢ | z)] their Fisher information, and leaves out the curvature of z(u). It is
never negative, and equals the Hessian where z is linear in u and p(y | z) in canonical form. The others replace Fᵢ by a
matrix of fewer columns: rᵢ rᵢᵀ with rᵢ = ∂ log p(yᵢ | z), which is Fᵢ on average over yᵢ where the model is right, or
Lᵢ E Eᵀ Lᵢᵀ / m with Lᵢ Lᵢᵀ = Fᵢ and random signs E. The prior's curvature is exact throughout.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from credo.compiling import brief
from credo.linalg.products import second_order
from credo.methods.laplace import layered
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.subproblem import columns, diagonal
from credo.model import curvature as products
from credo.model.data import Rows
from credo.model.fisher import Expected, Fisher, Sampled, Seen
from credo.model.target import Target
from credo.precision import abstract
from credo.status import CredoError

EXPENSIVE, COLUMNS = 1e10, 32  # multiplications: a second; above it so many columns a row stand for its outputs
MOST_DRAWN = 2**24  # numbers of the columns of one row
ENOUGH = 100  # columns of all rows for each output: a factor of as many dimensions is known to a tenth
FEW = 100  # coordinates of a model that is no network: a program of columns is compiled sooner than one of layers

Free = Int[np.ndarray, " free"] | None  # coordinates, ascending; None for all


@runtime_checkable
class Curvature(Protocol):
    """Which second derivatives count."""

    def check(self, target: Target) -> None:
        """CredoError where the target lacks what this curvature needs."""
        ...

    def matrix(
        self, objective: Objective, target: Target, optimum: Optimum, chunk: int, free: Free = None
    ) -> Float[np.ndarray, "free free"]: ...

    def diagonal(
        self, objective: Objective, target: Target, optimum: Optimum, chunk: int, free: Free = None
    ) -> Float[np.ndarray, " free"]:
        """The diagonal of ``matrix``, which is not formed."""
        ...


@dataclass(frozen=True)
class ExactHessian:
    """The Hessian itself, by products with vectors: it leaves nothing out, and can show a saddle."""

    def check(self, target: Target) -> None:
        pass

    def matrix(self, objective, target, optimum, chunk, free=None):
        if optimum.curvature is not None:  # the optimiser formed it
            return optimum.curvature if free is None else optimum.curvature[np.ix_(free, free)]
        return np.asarray(_hessian(objective.function, columns, chunk, objective.args, optimum.position, free))

    def diagonal(self, objective, target, optimum, chunk, free=None):
        if optimum.curvature is not None:
            found = np.diagonal(optimum.curvature).copy()
            return found if free is None else found[free]
        return np.asarray(_hessian(objective.function, diagonal, chunk, objective.args, optimum.position, free))


@dataclass(frozen=True)
class OuterProducts:
    """Σᵢ Jᵢᵀ Lᵢ Lᵢᵀ Jᵢ plus the Hessian of the prior: what the curvatures below have in common.

    They need a likelihood whose natural outputs are known: Normal, StudentT, Bernoulli, Binomial, Poisson, Exponential,
    one scalar or several columns a row, or Categorical, one class a row; or any that is the head of a network and can
    be drawn from.
    """

    @property
    def fisher(self) -> Fisher:
        """Lᵢ Lᵢᵀ of each row."""
        raise NotImplementedError

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K columns"]:
        """Lᵢ of each row, weights included."""
        return self.fisher.roots(target, u, rows)

    def width(self, num_outputs: int) -> int:
        """How many columns Lᵢ has: backward passes of the network a row."""
        return num_outputs

    def columns(self, target: Target, reached: np.ndarray) -> np.ndarray | None:
        """Those of them that the outputs ``reached`` take, where each output has one of its own; None for all."""
        return reached if isinstance(self.fisher, Expected) and self.fisher.is_diagonal(target.head) else None

    def check(self, target: Target) -> None:
        if target.y is None or target.model.likelihood is None:
            raise CredoError(
                f"{_NAMES.get(type(self).__name__, type(self).__name__)} needs a likelihood, and this target has none: "
                "use curvature=ExactHessian()."
            )
        if target.head is None:
            raise CredoError(
                f"{_NAMES.get(type(self).__name__, type(self).__name__)} needs the natural outputs of the likelihood, "
                "and they are not known for this one: use curvature=ExactHessian(), or Normal, StudentT, Bernoulli, "
                "Binomial, Poisson or Exponential outcomes, one or several a row, or a Categorical one."
            )

    def matrix(self, objective, target, optimum, chunk, free=None):
        u, where, layers = self._layers(target, optimum, free)
        if layers is None:
            return np.asarray(_products(objective.log_prior, self, columns, chunk, objective.args, target, u, free))
        found = layered.matrix(self, target, u, layers, where)
        of_prior, is_diagonal = layered.prior_product(objective, u, free)
        if is_diagonal:
            found[np.diag_indices_from(found)] += of_prior
            return found
        return found + np.asarray(_hessian(objective.log_prior, columns, chunk, objective.args, u, free))

    def diagonal(self, objective, target, optimum, chunk, free=None):
        u, where, layers = self._layers(target, optimum, free)
        if layers is None:
            return np.asarray(_products(objective.log_prior, self, diagonal, chunk, objective.args, target, u, free))
        of_prior, _ = layered.prior_diagonal(objective, target, u, layers)
        return layered.diagonal(self, target, u, layers, where) + of_prior[where]

    def _layers(self, target: Target, optimum: Optimum, free: Free):
        u = jnp.asarray(optimum.position)
        where = np.arange(u.size) if free is None else free
        is_worth = where.size > FEW or target.model.weights_name is not None
        return u, where, layered.layers_or_none(target, u, free) if is_worth else None


_NAMES = {"GaussNewton": "Gauss-Newton"}


@dataclass(frozen=True)
class GaussNewton(OuterProducts):
    """The generalised Gauss-Newton matrix of the likelihood plus the Hessian of the prior.

    It leaves out the curvature of the outputs as functions of the parameters. For canonical heads it is the outer
    product approximation of Bishop (2006, section 5.4.2) and the Fisher information.
    Needs a likelihood whose natural outputs are known: Normal, StudentT, Bernoulli, Binomial, Poisson, Exponential,
    one scalar or several columns a row, or Categorical, one class a row; or any that is the head of a network and can
    be drawn from, whose Fisher information is then an average over draws (``credo.nn.Custom``).
    """

    @property
    def fisher(self):
        return Expected()


@dataclass(frozen=True)
class EmpiricalFisher(OuterProducts):
    """Σᵢ gᵢ gᵢᵀ, gᵢ the gradient of log p(yᵢ | u), plus the Hessian of the prior. One column a datum: cheap.

    It is the Fisher information on average where the model is right, and no curvature where it is not: it leaves out
    that the outcomes seen are not those expected. For regression it holds squared residuals in the place of the noise
    variance, so that a model that fits too well looks less certain than it should, and one that fits badly more
    (Kunstner, Balles & Hennig 2019).
    """

    @property
    def fisher(self):
        return Seen()

    def width(self, num_outputs):
        return 1


@dataclass(frozen=True)
class SampledFisher(OuterProducts):
    """Gauss-Newton by outer products of ``num_columns`` random columns a datum: unbiased, for heads of many outputs.

    Each column is a gradient of the outputs with the covariance that gradients at outcomes drawn from the model have.
    It leaves out nothing on average; its error falls as 1/√(num_columns · N), of N rows that are not alike.
    """

    num_columns: int = field(default=1, metadata={"at_least": 1})
    seed: int = field(default=0, metadata={"at_least": 0})

    @property
    def fisher(self):
        return Sampled(self.num_columns, self.seed)

    def width(self, num_outputs):
        return self.num_columns


def affordable(target: Target) -> OuterProducts:
    """Gauss-Newton, or where a backward pass for each output of each row is dear, by a few random columns a row."""
    outputs = target.outputs
    assert outputs is not None  # checked
    u = abstract((target.dim,))
    # of all rows: a graph's network knows no other number of them
    num_outputs = jax.eval_shape(lambda u: outputs(target.constrain(u), target.x), u).shape[-1]
    if num_outputs <= 2 * COLUMNS or target.size * num_outputs * (target.dim + num_outputs**2) <= EXPENSIVE:
        return GaussNewton()
    enough = -(-ENOUGH * num_outputs // max(target.size, 1))
    return SampledFisher(int(np.clip(min(MOST_DRAWN // num_outputs, enough), 1, COLUMNS)))


@functools.partial(brief, static_argnames=("function", "form", "chunk"))
def _hessian(function: Callable, form: Callable, chunk: int, args, u, free):
    *_, product = second_order(lambda v: function(args, _moved(u, free, v)), _part(u, free))
    return form(lambda v: -product(v), _part(u, free), chunk)


@functools.partial(brief, static_argnames=("log_prior", "curvature", "form", "chunk"))
def _products(log_prior: Callable, curvature, form: Callable, chunk: int, args, target: Target, u, free):
    of_likelihood = likelihood_product(curvature, target, u, free)
    *_, of_prior = second_order(lambda v: log_prior(args, _moved(u, free, v)), _part(u, free))
    return form(lambda v: of_likelihood(v) - of_prior(v), _part(u, free), chunk)


def likelihood_product(curvature: OuterProducts, target: Target, u, free) -> Callable:
    """v ↦ Σ Jᵀ L Lᵀ J v over the free coordinates, all rows at once where memory holds them."""
    no_prior = jnp.zeros_like(_part(u, free))
    return products.Curvature(target, u, no_prior, free, curvature.fisher, target.rows_held, target.size).linear()


def prior_diagonal(objective: Objective, target: Target, u, free: Free) -> tuple[Float[np.ndarray, " free"], bool]:
    """The diagonal of −∇² log p(u) over the free coordinates, and whether it has no other entries.

    Of a network's weights, given its hyperparameters.
    """
    found, is_diagonal = layered.prior_product(objective, u, free)
    if is_diagonal:
        return found, True
    layers = layered.layers_or_none(target, u, free)
    if layers is not None:
        found, is_diagonal = layered.prior_diagonal(objective, target, u, layers)
        return found if free is None else found[free], is_diagonal
    return np.asarray(_hessian(objective.log_prior, diagonal, 1, objective.args, u, free)), False


def _part(u, free):
    return u if free is None else u[free]


def _moved(u, free, v):
    return v if free is None else u.at[free].set(v)
