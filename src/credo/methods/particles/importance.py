"""Importance sampling of any posterior that has a density, with Pareto-smoothed weights.

    u_s ~ q,  w_s = p(u_s, D) / q(u_s),  E[f | D] ≈ Σ w_s f(u_s) / Σ w_s,  p(D) ≈ mean w_s

Draws are independent. Expectations use smoothed weights (Vehtari et al. 2024): a little bias for much less variance.
The evidence uses the raw ones, for which the mean is unbiased; its standard error in log p(D) is by the delta method
sd(w) / (mean(w) √S) = (1/ESS − 1/S)^½ (Owen 2013, section 9.2, with ESS that of the raw weights). Above k̂ = 0.7 the
variance that the error estimates does not exist in practice, and the error is NaN: unknown.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.diagnose.pareto import effective_sample_size, judged_shape, smooth, threshold
from credo.diagnose.verdict import RULES, judge
from credo.model.target import Target
from credo.posterior.kinds import Draws, Kind
from credo.posterior.posterior import Posterior
from credo.run import Options, as_key, stream
from credo.status import CredoError, Estimate, Verdict

MEMORY = 2**29  # bytes that a batch of evaluations may take where the caller sets no limit
MAX_BATCH = 256  # evaluations at once: enough for matrix products at full speed


@dataclass(frozen=True)
class Importance:
    """Importance sampling with ``proposal``, a posterior over the same parameters that has a density.

    ``num_draws`` S: 4,000 draws know k̂ to about 0.05 and serve k̂ up to 0.7. The answer holds weighted draws
    (1, S, dim), the evidence with its Monte Carlo error, and in its verdict ``pareto_k`` and ``importance_ess``.
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

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        proposal = self.proposal if self.proposal is not None else start
        self._check(target, proposal)
        target = target.flat()
        deadline = options.deadline()
        batch = evaluations_at_once(target, options.max_memory)
        u, log_weights = draw_and_weigh(proposal.kind, target, key, self.num_draws, batch, deadline)
        num_draws = len(log_weights)
        smoothed = smooth(log_weights)
        if np.isnan(smoothed.log_weights).any():
            raise CredoError(
                f"The log density is finite at none of {num_draws} draws of the proposal, which misses the "
                "target: use a proposal fitted to this target, or NUTS()."
            )
        k_hat = judged_shape(log_weights, smoothed.k_hat)
        figures = {
            "pareto_k": k_hat,
            "importance_ess": effective_sample_size(smoothed.log_weights),
            "num_draws": num_draws,
        }
        cut = f"The time limit came after {num_draws:,} of {self.num_draws:,} draws."
        sentences = (cut,) if num_draws < self.num_draws else ()
        return Posterior(
            Draws(u[None], smoothed.log_weights[None].astype(u.dtype)),
            target,
            verdict=_verdict(figures, k_hat, num_draws, sentences),
            info={"num_densities": num_draws, "is_complete": num_draws == self.num_draws},
            log_evidence=log_evidence(log_weights, k_hat) if has_evidence(target) else None,
        )

    def _check(self, target: Target, proposal) -> None:
        if not isinstance(proposal, Posterior):
            raise CredoError(
                "Importance sampling needs a posterior to draw from: Importance(proposal=credo.fit(target, Laplace()))."
            )
        if proposal.target.structure != target.structure:
            raise CredoError("The proposal has other parameters than this target: fit it on the same model.")
        if self.num_draws < 1:
            raise CredoError(f"num_draws is {self.num_draws}: give a positive number, 1,000 or more to know k-hat.")


def log_evidence(log_weights: Float[np.ndarray, " S"], k_hat: float) -> Estimate:
    """log p(D) from raw log weights, with its standard error; NaN where k̂ says that no error can be known."""
    num_draws = len(log_weights)
    variance = 1 / effective_sample_size(log_weights) - 1 / num_draws
    error = float(np.sqrt(max(variance, 0.0))) if k_hat <= RULES["pareto_k"].passes else np.nan
    return Estimate(float(logsumexp(log_weights) - np.log(num_draws)), error, "monte carlo")


def has_evidence(target: Target) -> bool:
    """Whether p(D) is a number: not under an improper prior. A bare log density is taken as it stands."""
    prior = target.model.prior
    return target.model.log_factor is not None or set(prior.improper_names()) <= set(prior.factors)


def draw_and_weigh(
    kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf
) -> tuple[Float[np.ndarray, "S dim"], Float[np.ndarray, " S"]]:
    """Draws of ``kind`` and the logs of their importance weights: the same in any ``batch``.

    ``deadline``, by ``time.monotonic()``: no batch begins after it, but the first.
    """
    num_batches = -(-num_draws // batch)
    batch = -(-num_draws // num_batches)  # equal batches: one program, and little drawn in vain
    parts = []
    for first in range(0, num_draws, batch):
        if parts and time.monotonic() > deadline:
            break
        parts.append(jax.tree.map(np.asarray, _draw_and_weigh(kind, target, stream(key), np.int32(first), batch)))
    u, log_weights = (np.concatenate(column)[:num_draws] for column in zip(*parts, strict=True))
    return u, log_weights


@functools.partial(jax.jit, static_argnames=("batch",))
def _draw_and_weigh(kind: Kind, target: Target, key, first, batch: int):
    def one(index):
        u = kind.sample_u(jax.random.fold_in(as_key(key), index))
        return u, target.log_density(u) - kind.log_prob_u(u)

    return jax.vmap(one)(first + jnp.arange(batch, dtype=jnp.int32))


def evaluations_at_once(target: Target, max_memory: int | None = None) -> int:
    """How many log densities fit into memory together."""
    size = intermediate_bytes(lambda target, u: target.log_density(u), target, jnp.zeros(target.dim))
    return int(np.clip((max_memory or MEMORY) // size, 1, MAX_BATCH))


def intermediate_bytes(function: Callable, *args) -> int:
    """An upper bound of the memory that one call takes beside its arguments: the sum of all that it computes."""
    return max(_bytes_of(jax.make_jaxpr(function)(*args).jaxpr), 1)


def _bytes_of(jaxpr) -> int:
    inner = (getattr(value, "jaxpr", None) for eqn in jaxpr.eqns for value in eqn.params.values())
    own = (out.aval for eqn in jaxpr.eqns for out in eqn.outvars)
    return sum(_bytes_of(j) for j in inner if hasattr(j, "eqns")) + sum(
        int(np.prod(a.shape)) * getattr(a.dtype, "itemsize", 8) for a in own if hasattr(a, "shape")
    )


def _verdict(figures: dict[str, float], k_hat: float, num_draws: int, sentences: tuple[str, ...]) -> Verdict:
    if not threshold(num_draws) < k_hat <= RULES["pareto_k"].passes:
        return judge(figures, sentences)
    # below about 2,200 draws the largest reliable k̂ is smaller than the table's (Vehtari et al. 2024, section 3.2.4)
    enough = int(np.ceil(10 ** (1 / (1 - k_hat))))
    sentence = f"With a Pareto k-hat of {k_hat:.2f}, {num_draws} draws are too few: raise num_draws to {enough:,}."
    return judge(figures, (sentence, *sentences), at_best="doubtful")
