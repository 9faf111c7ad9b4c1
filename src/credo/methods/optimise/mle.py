"""Maximum likelihood, with the inverse of the observed information as covariance, and confidence ellipsoids.

    θ̂ = argmax log p(D | θ),  Σ = G A⁻¹ Gᵀ,  A = −∇²_u log p(D | θ(u)) at û,  G = ∂θ/∂u

Priors are ignored, whatever they are: only their supports matter. At a maximum Σ is the inverse of −∇²_θ log p(D | θ),
the observed Fisher information (Efron & Hinkley 1978), in whichever parameters A was formed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special
from jaxtyping import Float

from credo.algorithm import Options
from credo.compiling import sound
from credo.methods.optimise.diagnosis import diagnose
from credo.methods.optimise.map import fit_info
from credo.methods.optimise.newton import MAX_STEPS
from credo.methods.optimise.objective import find_mode, of_likelihood, solver_for, starting_position
from credo.methods.optimise.remaining import of_network
from credo.model.prior import leaf_name
from credo.model.target import Target
from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError

OFF = 1e-5  # of the length of a deviation, in standard errors: as far as it may lie off a constraint by rounding


@dataclass(frozen=True)
class MLE:
    """The maximum of the likelihood; priors are ignored but for their supports.

    ``posterior.info`` holds ``covariance`` (P, P), the inverse of the observed information in the user's space in the
    order of ``scalar_names``, and ``standard_errors``, in the structure of the parameters; both are NaN where the
    maximum is none. ``information`` (dim, dim) is A in the unconstrained space, ``sensitivity`` (P, dim) is G.
    ``num_steps``: at most this many evaluations.

    Perfectly separated classes, a variance that runs to zero and collinear inputs are ``failed``, with a sentence that
    names the parameter. Raises CredoError for a model without a likelihood.

    >>> import numpy as np, numpyro.distributions as dist
    >>> from credo import MLE, Model, confidence_ellipsoid, fit
    >>> model = Model({"mean": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["mean"] * x, 1.0))
    >>> posterior = fit(model.given(np.ones(4), np.array([1.0, 2.0, 3.0, 4.0])), MLE())
    >>> float(posterior.mean()["mean"]), float(posterior.info["standard_errors"]["mean"])
    (2.5, 0.5)
    """

    num_steps: int = field(default=MAX_STEPS, metadata={"at_least": 1})

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        if target.y is None or target.model.likelihood is None:
            raise CredoError("MLE() needs a likelihood and outcomes y, and this target has none: use MAP().")
        objective = of_likelihood(target)
        solver = solver_for(target, options.max_memory)
        optimum = find_mode(
            objective,
            target,
            starting_position(target, key, start),
            key,
            solver,
            max_steps=self.num_steps,
            time_limit=options.time_limit,
        )
        diagnosis, num_products = of_network(diagnose(target, objective, optimum, solver), objective, target, optimum)
        optimum = optimum._replace(num_products=optimum.num_products + num_products)
        verdict = diagnosis.verdict()
        covariance, G = np.full((len(target.structure.scalar_names()),) * 2, np.nan), None
        is_known = diagnosis.spectrum is not None and diagnosis.spectrum.is_positive
        if verdict.status != "failed" and is_known and optimum.curvature is not None:
            G = np.asarray(_sensitivity(target, optimum.position), np.float64)
            covariance = G @ scipy.linalg.cho_solve(scipy.linalg.cho_factor(optimum.curvature), G.T)
            covariance = 0.5 * (covariance + covariance.T)
        info = fit_info(objective, optimum) | {
            "covariance": covariance,
            "sensitivity": G,
            "information": None if G is None else np.asarray(optimum.curvature, np.float64),
            "standard_errors": _shaped(target, np.sqrt(np.diagonal(covariance))),
            "scalar_names": target.structure.scalar_names(),
            "log_likelihood": optimum.value,
        }
        return Posterior(Point(jax.device_put(optimum.position)), target, verdict=verdict, info=info)


@dataclass(frozen=True)
class Ellipsoid:
    """{θ : (θ − center)ᵀ covariance⁻¹ (θ − center) ≤ radius_squared}, a confidence region of the given level.

    ``center`` (P,), ``covariance`` (P, P), in the order of ``names``: the covariance is G A⁻¹ Gᵀ, with ``sensitivity``
    G (P, dim) and ``information`` A (dim, dim). Nearly collinear inputs leave A its digits, and not its inverse.
    """

    center: Float[np.ndarray, " P"]
    covariance: Float[np.ndarray, "P P"]
    sensitivity: Float[np.ndarray, "P dim"]
    information: Float[np.ndarray, "dim dim"]
    radius_squared: float
    level: float
    names: tuple[str, ...]
    leaves: tuple[str, ...]

    def contains(self, params) -> bool:
        """Whether ``params`` lie in it: parameters as the model names them, or a vector in the order of ``names``."""
        return self.distance_squared(params) <= self.radius_squared

    def distance_squared(self, params) -> float:
        """The squared Mahalanobis distance from the centre; infinite off a constraint that the centre obeys."""
        deviation = self._vector(params) - self.center
        size = np.linalg.norm(self.sensitivity, axis=0)
        z = np.linalg.lstsq(self.sensitivity / size, deviation)[0] / size  # in the coordinates that are free
        scale = np.sqrt(np.diagonal(self.covariance))
        scale = np.where(scale > 0, scale, 1.0)
        if np.linalg.norm((deviation - self.sensitivity @ z) / scale) > OFF * (1 + np.linalg.norm(deviation / scale)):
            return np.inf
        return float(z @ self.information @ z)

    def _vector(self, params) -> np.ndarray:
        if isinstance(params, list | tuple) or hasattr(params, "__array__"):
            vector = np.asarray(params, np.float64)
        else:
            found = {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
            missing = [name for name in self.leaves if name not in found]
            if missing:
                raise CredoError(f"The parameters lack {missing[0]!r}; the region is of {', '.join(self.leaves)}.")
            vector = np.concatenate([np.ravel(np.asarray(found[name], np.float64)) for name in self.leaves])
        if vector.shape != self.center.shape:
            raise CredoError(f"The parameters have {vector.size} scalars; the region is of {self.center.size}.")
        return vector


def confidence_ellipsoid(posterior: Posterior, level: float = 0.95) -> Ellipsoid:
    """The region that covers the true parameters in ``level`` of data sets, to the order of the normal approximation.

    ``posterior``: from ``MLE()``. Its radius is the quantile of χ² with as many degrees of freedom as free parameters
    (Wald). Exact for the mean of a normal model with known variance, and asymptotic otherwise.
    """
    if not 0 < level < 1:
        raise CredoError(f"A confidence level lies between 0 and 1; got {level}.")
    if "covariance" not in posterior.info:
        raise CredoError("A confidence ellipsoid needs a fit by MLE(): fit the target with it.")
    covariance = posterior.info["covariance"]
    if not np.all(np.isfinite(covariance)):
        raise CredoError(
            f"The fit found no maximum of the likelihood ({posterior.verdict.status}), so there is no region round it: "
            f"{' '.join(posterior.verdict.sentences)}"
        )
    named = posterior.target.prior.leaves(posterior.mean())
    leaves = tuple(leaf.name for leaf in posterior.target.structure.leaves)
    center = np.concatenate([np.ravel(named[name]) for name in leaves])
    radius_squared = float(scipy.special.chdtri(posterior.target.dim, 1 - level))
    names = tuple(posterior.target.structure.scalar_names())
    sensitivity, information = posterior.info["sensitivity"], posterior.info["information"]
    return Ellipsoid(center, covariance, sensitivity, information, radius_squared, level, names, leaves)


@sound
def _sensitivity(target: Target, u) -> Float[jax.Array, "P dim"]:
    """∂θ/∂u."""

    def scalars(u):
        named = target.prior.leaves(target.constrain(u))
        return jnp.concatenate([jnp.ravel(named[leaf.name]) for leaf in target.structure.leaves])

    return jax.jacfwd(scalars)(u)


def _shaped(target: Target, scalars: np.ndarray) -> Mapping:
    """Values by scalar -> the structure of the parameters."""
    sizes = [int(np.prod(leaf.shape)) for leaf in target.structure.leaves]
    parts = np.split(scalars, np.cumsum(sizes)[:-1])
    leaves = target.structure.leaves
    values: dict = {leaf.name: part.reshape(leaf.shape) for leaf, part in zip(leaves, parts, strict=True)}
    return target.structure.assemble(values)
