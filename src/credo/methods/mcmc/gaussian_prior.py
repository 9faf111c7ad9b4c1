"""Is a prior jointly Gaussian in the unconstrained space, and which Gaussian is it?

Read off the prior's log density, never off the names of distributions: it is quadratic, as far as half to 64 standard
deviations show (linalg/quadratic.py). So independent, multivariate and linear-Gaussian conditional priors all
count, and so does a log-normal one, whose position is the logarithm.
"""

import numpy as np

from credo.linalg.diagonal import Diagonal
from credo.linalg.quadratic import Quadratic, quadratic, third_derivatives
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.precision import double
from credo.status import CredoError

IS_QUADRATIC = 1e-6  # relative residual: above it a derivative is left over, below it only rounding
ADVICE = "Use NUTS(), or Slice() where the density has no gradient"


def gaussian_prior(target: Target) -> Gaussian:
    """The prior N(m, S Sᵀ) of the positions, S diagonal where it can be; CredoError, which says why not, elsewhere."""
    with double():
        target = target.flat().cast(np.float64)
        found = quadratic(target.log_prior, target.dim)
        if not found.residual <= IS_QUADRATIC or found.scale is None:
            raise CredoError(_refusal(target, found))
    variances = np.diagonal(found.precision)
    if np.array_equal(found.precision, np.diag(variances)):
        return Gaussian(found.mean, Diagonal(variances**-0.5))
    return Gaussian(found.mean, found.scale)


def _refusal(target: Target, found: Quadratic) -> str:
    need = "EllipticalSlice() needs a prior that is jointly Gaussian in the unconstrained space"
    if target.model.log_factor is not None:
        return f"{need}, and a bare log density has none: write it as prior and likelihood. {ADVICE}."
    if np.isnan(found.residual):
        return f"{need}; the log density of this one, or a derivative of it, is not finite at the origin. {ADVICE}."
    leaves = target.structure.leaves
    ends = np.cumsum([leaf.size for leaf in leaves])
    blocks = [slice(end - leaf.size, end) for leaf, end in zip(leaves, ends, strict=True)]
    if found.residual <= IS_QUADRATIC:
        direction = np.abs(found.flat_direction())
        leads = 0.1 * np.max(direction)
        names = [leaf.name for leaf, block in zip(leaves, blocks, strict=True) if np.max(direction[block]) > leads]
        return (
            f"{need}; the prior leaves {_listed(names)} free, or all but free: it is flat, a difference alone, or so "
            "correlated that its covariance is singular within rounding (add a larger number to the diagonal of a "
            f"Gaussian process's). {ADVICE}."
        )
    bends = third_derivatives(target.log_prior, target.dim, blocks)[:-1]
    names = [leaf.name for leaf, bend in zip(leaves, bends, strict=True) if not bend <= IS_QUADRATIC]
    if names:
        return f"{need}, and that of {_listed(names)} is not. {ADVICE}."
    names = [leaf.name for leaf in leaves]
    return f"{need}; that of {_listed(names)} is Gaussian in each alone and not in all of them together. {ADVICE}."


def _listed(names: list[str]) -> str:
    shown = [f"{name!r}" for name in names[:4]] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
