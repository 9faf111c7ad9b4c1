"""From a distribution that can be drawn from to the posterior: the path that tempered samplers walk.

    log γ_β(u) = log π_0(u) + β ℓ(u),  0 ≤ β ≤ 1

π_0 is the prior (log_base) and ℓ the log likelihood (gain); or π_0 is a posterior that has a density, and ℓ the log
density of the target less that of π_0. Z_1/Z_0, the ratio of the normalising constants at both ends, is p(D).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.methods.particles.importance import has_evidence, kind_with_density
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.posterior.posterior import Posterior
from credo.status import CredoError


class Path(eqx.Module):
    """``reference``: π_0; None for the prior. The target is flat."""

    target: Target
    reference: Kind | None

    def draw(self, key) -> Float[Array, " dim"]:
        """A draw from π_0."""
        return self.target.sample_prior(key) if self.reference is None else self.reference.sample_u(key)

    def parts(self, u) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """(log π_0, ℓ) at ``u``, whatever they are."""
        if self.reference is None:
            return self.target.log_prior(u), jnp.sum(self.target.log_likelihood(u))
        log_base = self.reference.log_prob_u(u)
        return log_base, self.target.log_density(u) - log_base


def path_to(target: Target, reference: Posterior | None, role: str = "reference") -> Path:
    """CredoError where there is nothing to draw from at its beginning, or nothing to add on the way."""
    if reference is not None:
        return Path(target, kind_with_density(reference, target, role))
    remedy = "or give a distribution to begin at, SMC(reference=credo.fit(target, credo.Laplace()))"
    lacking = _lacks_prior(target)
    if lacking is not None:
        raise CredoError(f"SMC begins with draws from the prior, {lacking}, {remedy}.")
    if target.model.likelihood is None or target.y is None:
        lacking = target.model.without_likelihood if target.model.likelihood is None else "no data were given"
        raise CredoError(
            "SMC goes from the prior to the posterior, and this target has no likelihood apart from its prior "
            f"({lacking}): write the model as prior and likelihood, {remedy}."
        )
    return Path(target, None)


def _lacks_prior(target: Target) -> str | None:
    """Why there are no draws of the prior, and what to do about it."""
    if target.model.log_factor is not None:
        return "and a bare log density has none apart from it: write the model as prior and likelihood"
    if target.prior.factors:
        factor = target.prior.factors[0]
        return f"and the factor {factor!r} cannot be drawn from: write it as a distribution, of a parameter or of data"
    if not has_evidence(target):
        names = ", ".join(map(repr, target.prior.improper_names()))
        return f"which is improper ({names}): give each parameter a proper prior"
    return None
