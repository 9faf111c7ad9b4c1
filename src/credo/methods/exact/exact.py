"""The exact posterior, where the model has one: conjugate pairs, and log joints quadratic in the unconstrained space.

Both are recognised from the density itself, never from the names of distributions, and checked at positions far and
near. A quadratic log joint, f(u) = f(m) − ½ (u − m)ᵀ P (u − m), has the posterior N(m, P⁻¹) and the evidence

    log p(D) = f(m) + (d/2) log 2π − ½ log |P|.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credo.algorithm import Options
from credo.diagnose.verdict import judge
from credo.linalg.quadratic import Quadratic, misfit, quadratic, third_derivatives
from credo.methods.exact.conjugate import TOLERANCE, recognise
from credo.methods.from_prior import from_prior
from credo.methods.particles.importance import evaluations_at_once, has_evidence
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double
from credo.status import CredoError, Estimate

IS_QUADRATIC = 1e-6  # relative residual: above it a derivative is left over, below it only rounding
NUM_PRIOR = 63  # draws: a mode that holds a twentieth of the prior is missed by one set in twenty-five
ADVICE = "Use Laplace() for a Gaussian approximation, NUTS() for draws, or Grid() for up to three parameters"


@dataclass(frozen=True)
class Exact:
    """The posterior and evidence in closed form; CredoError, which says why not, where the model has none.

    ``info["route"]`` is "conjugate" (a ``Product`` of named distributions) or "quadratic" (a ``Gaussian``). The
    figure ``exact_residual`` is the largest relative error of the identities that the answer must fulfil.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    >>> posterior = credo.fit(model.given(np.array([1.0, 2.0]), np.array([1.0, 2.0])), credo.Exact())
    >>> round(float(posterior.mean()["w"]), 6), round(posterior.log_evidence.value, 6)
    (0.833333, -3.150423)
    """

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        _refuse_a_moving_edge(target)
        found = recognise(target)
        if found is not None:
            distributions, log_evidence = found
            kind: Kind = Product(distributions, target.structure)
            route, residual, num_gradients = "conjugate", TOLERANCE, 0  # what recognition has checked
        else:
            chunk = evaluations_at_once(target, options.max_memory)
            expansion = quadratic(target.log_density, target.dim, chunk=min(chunk, 32))
            _refuse_if_not_gaussian(expansion, target)
            _refuse_another_mode(expansion, target)
            kind = Gaussian(expansion.mean, expansion.scale)  # type: ignore[arg-type]  # refused above
            log_evidence = expansion.log_integral()
            route, residual, num_gradients = "quadratic", expansion.residual, target.dim
        return Posterior(
            kind,
            target,
            verdict=judge({"exact_residual": residual}),
            info={"route": route, "num_gradients": num_gradients},
            log_evidence=Estimate(log_evidence, 0.0, "exact") if has_evidence(target) else None,
        )


def _refuse_a_moving_edge(target: Target) -> None:
    """CredoError where parameters move the edge of the outcomes' support: there the density jumps to zero, beyond the
    positions perhaps at which it would be looked at."""
    if target.model.likelihood is None or target.y is None:
        return
    with double():
        positions = np.random.default_rng(2).normal(size=(2, target.dim))
        one, other = (
            [np.asarray(edge) for edge in _edges(target.likelihood_distribution(target.constrain(u), target.x))]
            for u in positions
        )
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)):
        raise CredoError(
            "No closed form is known for this model: its parameters move the edge of the values that outcomes can "
            "have, and there the posterior is cut off. Use Slice() or Importance(), or Grid() with bounds."
        )


def _edges(outcome: Any) -> list:
    """The numbers by which the support of a distribution, or of several by name, is given."""
    each = outcome.values() if isinstance(outcome, dict) else [outcome]
    return [edge for d in each for edge in jax.tree.leaves(d.support)]


def _refuse_if_not_gaussian(expansion: Quadratic, target: Target) -> None:
    if np.isnan(expansion.residual):
        raise CredoError(
            "The log density or its derivatives are not finite at the origin of the unconstrained space, so Exact() "
            f"cannot tell whether the model has a closed form. {ADVICE}."
        )
    if expansion.residual > IS_QUADRATIC:
        raise CredoError(f"No closed form is known for this model: {_blame(target)}. {ADVICE}.")
    if expansion.scale is None:
        raise CredoError(
            "The log joint is quadratic but not bounded above: data and prior leave "
            f"{_names(target, expansion.flat_direction())} free, so the posterior is improper. Give these parameters a "
            "proper prior."
        )


def _refuse_another_mode(expansion: Quadratic, target: Target) -> None:
    """CredoError where the log joint is another function at draws of the prior, if it can be drawn from."""
    if target.model.log_factor is not None:
        return
    positions = from_prior(target, NUM_PRIOR)
    if len(positions) and misfit(target.log_density, expansion, positions) > IS_QUADRATIC:
        raise CredoError(
            "No closed form is known for this model: its log joint is quadratic where it was looked at first, and "
            f"another function elsewhere in the prior, where there may be another mode. {ADVICE}."
        )


def _blame(target: Target) -> str:
    """What is not quadratic: parameters whose own third derivative does not vanish, or the way they meet."""
    leaves = target.structure.leaves
    ends = np.cumsum([leaf.size for leaf in leaves])
    blocks = [slice(end - leaf.size, end) for leaf, end in zip(leaves, ends, strict=True)]
    bends = third_derivatives(target.log_density, target.dim, blocks)[:-1]
    curved = [leaf.name for leaf, bend in zip(leaves, bends, strict=True) if not bend <= IS_QUADRATIC]
    if curved:
        return (
            f"its third derivative in {_listed(curved)} does not vanish in the unconstrained space, and it is not one "
            "of the conjugate pairs (of a normal mean and variance, both unknown: credo.exact.NormalInverseGamma, "
            "without a model)"
        )
    return (
        f"its log joint is quadratic in each of {_listed([leaf.name for leaf in leaves])} alone but not in all of them "
        "together (a product of parameters), or only near the origin"
    )


def _names(target: Target, direction: np.ndarray) -> str:
    """The parameters that move along ``direction``."""
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    parts = np.split(np.abs(direction), ends[:-1])
    return _listed(
        [leaf.name for leaf, part in zip(target.structure.leaves, parts, strict=True) if np.max(part, initial=0) > 0.1]
    )


def _listed(names: list[str]) -> str:
    shown = [f"'{name}'" for name in names[:4]] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
