"""Importance sampling of any posterior that has a density, with Pareto-smoothed weights.

    u_s ~ q,  w_s = p(u_s, D) / q(u_s),  E[f | D] ≈ Σ w_s f(u_s) / Σ w_s,  p(D) ≈ mean w_s

Expectations use smoothed weights (Vehtari et al. 2024): a little bias for much less variance. The evidence uses the raw
ones, for which the mean is unbiased. Points fall into G independent groups (points.py): a draw each, or a scramble of a
Sobol sequence each. With W_g = Σ_{s∈g} w_s, standard errors are those of a ratio of sums over groups (delta method;
Cochran 1977, chapter 6; Owen 2013, section 9.2), which for groups of one is the central limit theorem's
    error of log p(D):  sd(W_g) / (mean(W_g) √G) = (G/(G−1) (1/ESS_W − 1/G))^½,  ESS_W = (Σ W_g)² / Σ W_g²
    error of E[f | D]:  (G/(G−1) Σ_g (Σ_{s∈g} w̄_s (f_s − μ̂))²)^½,  Σ w̄ = 1,  μ̂ = Σ w̄ f   (``mcse_mean`` of summary())
both times the sd of Student's t with G−1 degrees of freedom, which few groups ask for (marginals.student_variance).
Above k̂ = 0.7 the variance that they estimate does not exist in practice, and they are NaN: unknown. ``mcse_mean`` is
named there too where the weights are worth nearly all of their draws (pareto.judged_shape), the evidence's is not.
"""

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.algorithm import Options, stream
from credo.diagnose.pareto import effective_sample_size
from credo.diagnose.verdict import RULES, judge
from credo.linalg.embedded import Embedded
from credo.memory import footprint, peak
from credo.methods.optimise.objective import is_differentiable
from credo.methods.particles.correction import gradients
from credo.methods.particles.elsewhere import Climber
from credo.methods.particles.left_out import left_out
from credo.methods.particles.points import Independent, Points
from credo.methods.particles.weighed import MOST_ROUNDS, answer
from credo.methods.particles.weighing import draw_and_weigh as draw_and_weigh  # re-exported: other families weigh too
from credo.model.target import Target
from credo.posterior.kinds import Draws, Kind, Point
from credo.posterior.marginals import student_variance
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate
from credo.traced import by_shapes

MEMORY = 2**29  # bytes that a batch of evaluations may take where the caller sets no limit
NUMBERS_A_DRAW = 4  # a coordinate: noise, position, and what the proposal's density takes
MAX_BATCH = 256  # evaluations at once: enough for matrix products at full speed


@dataclass(frozen=True)
class Importance:
    """Importance sampling with ``proposal``, a posterior over the same parameters that has a density.

    ``num_draws`` S: 4,000 draws know k̂ to about 0.05 and serve k̂ up to 0.7; independent ones are added, up to eight
    times as many, until means and sds are known to within the bounds of a pass. ``points``: ``Independent()`` draws, of
    which a fifth reach far where the proposal is Gaussian or a mixture of Gaussians, or ``Sobol()``, which for a
    Gaussian proposal and a smooth target in few dimensions is worth many times the draws. The answer holds weighted
    draws (1, S, dim), or (replications, S / replications, dim); the evidence with its Monte Carlo error; ``mcse_mean``
    in its summary; and in its verdict ``pareto_k``, ``importance_ess`` (of the weights alone, as if the points were
    independent), how far means and sds may be off (``mean_limit``, ``log_sd_limit``), and ``stein_gap``: whether a part
    of the posterior was missed.
    Raises CredoError where the proposal has no density or other parameters, or misses the target altogether.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.Importance(proposal=credo.fit(target, credo.Laplace())))
    >>> round(float(posterior.mean()["rate"]), 1), posterior.verdict.status
    (3.0, 'pass')
    """

    proposal: Posterior | None = None
    num_draws: int = 4_000
    points: Points = field(default_factory=Independent)

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        proposal = self.proposal if self.proposal is not None else start
        self._check(target, proposal)
        target = target.flat()
        deadline = options.deadline()
        batch = evaluations_at_once(target, options.max_memory)
        values = values_at_once(target, batch)
        chains, size = self.points.shape(self.num_draws)

        def draw(i: int):
            round_key = key if i == 0 else stream(key, i)
            return self.points.draw_and_weigh(proposal.kind, target, round_key, self.num_draws, values, deadline)

        def gradient(u):
            return gradients(log_density, target, u, batch)

        found = answer(target, draw, gradient, deadline, MOST_ROUNDS if chains == 1 else 1)
        num_draws = len(found.u)
        if found.is_lost:
            raise CredoError(
                f"The log density is finite at none of {num_draws} draws of the proposal, which misses the "
                "target: use a proposal fitted to this target, or NUTS()."
            )
        climber = Climber.of(target) if is_differentiable(target) else None
        log_z = float(logsumexp(found.raw) - np.log(num_draws))
        weighed = {"log_weights": found.log_weights, "climber": climber, "log_z": log_z}
        unseen = left_out(proposal.kind, target, found.u, found.figures, deadline, **weighed)
        # groups that got points far out are larger than was promised
        asked = max(chains * size, chains * (num_draws // found.num_groups))
        is_complete = num_draws >= asked
        cut = f"The time limit came after {num_draws:,} of {asked:,} draws."
        sentences = found.sentences if is_complete else (cut, *found.sentences)
        if found.k_hat > RULES["pareto_k"].passes and not self.points.reaches_far:
            sentences = (
                *sentences,
                "A wide_share of the points can reach far, for tails that are too light: 0.2 is the default.",
            )
        groups = found.num_groups
        return Posterior(
            Draws(found.u.reshape(groups, -1, target.dim), found.log_weights.reshape(groups, -1).astype(found.u.dtype)),
            target,
            verdict=judge(found.figures | unseen, sentences, at_best="doubtful" if found.sentences else "pass"),
            info={"num_densities": num_draws, "num_gradients": found.num_gradients, "is_complete": is_complete},
            log_evidence=log_evidence(found.raw, found.k_hat, groups) if has_evidence(target) else None,
        )

    def _check(self, target: Target, proposal) -> None:
        if not isinstance(proposal, Posterior):
            raise CredoError(
                "Importance sampling needs a posterior to draw from: Importance(proposal=credo.fit(target, Laplace()))."
            )
        kind_with_density(proposal, target, "proposal")
        if self.num_draws < 1:
            raise CredoError(f"num_draws is {self.num_draws}: give a positive number, 1,000 or more to know k-hat.")


def kind_with_density(posterior: Posterior, target: Target, role: str) -> Kind:
    """What ``posterior`` says of ``target``'s parameters; CredoError where that is no density over all of them."""
    target.structure.check_same(posterior.target.structure, role)
    if isinstance(posterior.kind, Point | Draws):
        raise CredoError(
            f"The {role} is a {type(posterior.kind).__name__} posterior, which has no density: use one by Laplace() or "
            "ADVI()."
        )
    if isinstance(getattr(posterior.kind, "scale", None), Embedded):
        raise CredoError(
            f"The {role} is a Gaussian of some parameters, the others known: its draws lie on a plane, and have no "
            "weights. Take a fit of all parameters, such as Laplace(subset=All())."
        )
    return posterior.kind


def log_evidence(log_weights: Float[np.ndarray, " S"], k_hat: float, chains: int = 1) -> Estimate:
    """log p(D) from raw log weights, with its standard error; NaN where k̂ says that no error can be known.

    ``chains``: how many independent groups the points are, one after the other; 1 for independent points.
    """
    groups = np.asarray(logsumexp(log_weights.reshape(chains, -1), axis=1)) if chains > 1 else log_weights
    num_groups = len(groups)
    variance = (1 / effective_sample_size(groups) - 1 / num_groups) * num_groups / max(num_groups - 1, 1)
    error = (
        float(np.sqrt(max(variance * student_variance(num_groups - 1), 0.0)))
        if k_hat <= RULES["pareto_k"].passes
        else np.nan
    )
    return Estimate(float(logsumexp(log_weights) - np.log(len(log_weights))), error, "monte carlo")


@by_shapes
def has_evidence(target: Target) -> bool:
    """Whether p(D) is a number: not under an improper prior. A bare log density is taken as it stands."""
    prior = target.model.prior
    return target.model.log_factor is not None or set(prior.improper_names()) <= set(prior.factors)


def evaluations_at_once(target: Target, max_memory: int | None = None) -> int:
    """How many log densities fit into memory together."""
    size = footprint(lambda target, u: target.log_density(u), target, jnp.zeros(target.dim))
    return int(np.clip((max_memory or MEMORY) // size, 1, MAX_BATCH))


def values_at_once(target: Target, evaluations: int) -> int:
    """How many draws are weighed in the memory of so many ``evaluations_at_once``: nothing is kept for a gradient."""
    whole, held = (size(log_density, target, jnp.zeros(target.dim)) for size in (footprint, peak))
    held += NUMBERS_A_DRAW * 8 * target.dim
    return int(np.clip(evaluations * whole // held, evaluations, max(evaluations, MAX_BATCH)))


def log_density(target: Target, u):
    return target.log_density(u)
