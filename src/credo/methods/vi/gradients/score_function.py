"""Score function, "REINFORCE" (Williams 1992; Ranganath, Gerrish & Blei 2014, eq. 2), with two ways to less noise.

    ∇_ξ E_q[L] = E_q[Σ_k (L − baseline_k) ∂ log q_ξ(u_k) − L_k ∂ log q_ξ(u_k)]

It asks for values of the log density alone: parameters may be discrete, and the density need have no derivative. The
price is noise. *Leave-one-out baselines*: what the other draws give has the mean of L and is independent of u_k, and
scores have mean zero. On the ELBO it is the mean of the others' log weights (Kool, van Hoof & Welling 2019); within a
group of draws, L with ℓ_k replaced by the mean of the others' (Mnih & Rezende 2016, eq. 9).
*Rao-Blackwellisation*: where q makes coordinates independent, the ELBO's gradient in those of coordinate i needs only
the terms of log p that u_i moves, less log q_i(u_i) (Ranganath et al., section 3.1); the others have mean zero.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from credo.algorithm import as_key
from credo.batches import in_batches
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.supports import examples
from credo.methods.vi.gradients.estimator import Estimator, by_scores
from credo.methods.vi.gradients.terms import Dependence, Terms, dependence, log_terms, relevant
from credo.methods.vi.minibatch import random_rows
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.objective import Objective, WeightObjective
from credo.model.target import Target
from credo.status import CredoError


@dataclass(frozen=True)
class ScoreFunction(Estimator):
    """For discrete parameters, and densities without a derivative.

    ``baseline``: leave-one-out baselines. ``rao_blackwell``: only the terms that a coordinate moves, for families of
    independent coordinates and the ELBO; it changes nothing for others.
    """

    baseline: bool = True
    rao_blackwell: bool = True
    has_paths: ClassVar[bool] = False

    def check(self, objective: Objective, family: Family, target: Target, num_samples: int) -> None:
        if isinstance(objective, FisherDivergence):
            raise CredoError(
                "FisherDivergence() compares derivatives of log densities along draws, and ScoreFunction() asks for "
                "values of log p alone: take gradient=StickingTheLanding(), or another objective."
            )
        if self.baseline and num_samples < 2:
            raise CredoError(
                "A leave-one-out baseline needs another draw: raise num_samples to 2 or more, or say "
                "ScoreFunction(baseline=False)."
            )

    def prepare(self, target: Target, has_rows: bool = True) -> Dependence | None:
        return dependence(target, examples(target), has_rows) if self.rao_blackwell else None

    def density(self, target, anchor, batch_size, key):
        batch = None if batch_size is None else random_rows(target, batch_size, key)
        if not self.rao_blackwell:
            return lambda u: target.log_density(u, batch)
        return lambda u: log_terms(target, u, batch)

    def noise(self, objective, family, key, num_samples, dim):
        """A key a draw: independent, not mirrored, as leaving one out asks for."""
        return jax.random.key_data(jax.random.split(key, num_samples))

    def surrogate(self, objective, family, q, tangent, log_density, z, known, draws_at_once):
        assert isinstance(objective, WeightObjective)
        moved = family.move(q, tangent)
        is_apart = self.rao_blackwell and objective.is_linear and known is not None

        def one(key):
            u = jax.lax.stop_gradient(q.sample_u(as_key(key)))
            found = log_density(u)
            log_p = found.total() if isinstance(found, Terms) else found
            log_weight = jax.lax.stop_gradient(log_p - q.log_prob_u(u))
            log_probs = family.log_probs(moved, u) if is_apart else None
            if log_probs is None or known is None or not isinstance(found, Terms):
                return log_weight, log_weight, moved.log_prob_u(u)
            return log_weight, jax.lax.stop_gradient(relevant(found, known) - log_probs), log_probs

        log_weights, learned, log_prob = in_batches(one, z, draws_at_once)
        value = objective(log_weights, jnp.zeros_like(log_weights))
        if objective.group_size == 1:  # the ELBO, whose −L_k multiplies a score of mean zero
            if self.baseline:
                num = learned.shape[0]
                learned = (num / (num - 1)) * (learned - jnp.mean(learned, axis=0))  # less the mean of the others
            along = jax.lax.stop_gradient(learned) * (log_prob - jax.lax.stop_gradient(log_prob))
            return value + jnp.mean(jnp.sum(along.reshape(along.shape[0], -1), axis=1))
        groups = objective.grouped(log_weights)
        weights = jax.vmap(lambda group: objective.score_weights(group, jnp.zeros_like(group)))(groups)
        if objective.is_derivative:
            weights = weights + jax.vmap(lambda group: self._learned(objective, group))(groups)
        return by_scores(objective, value, weights.ravel(), log_prob)

    def _learned(self, objective: WeightObjective, log_weights):
        """L less its baseline, one a draw of a group."""
        zeros, size = jnp.zeros_like(log_weights), log_weights.size
        whole = objective.of_group(log_weights, zeros)
        if not self.baseline or size == 1:
            return jnp.full_like(log_weights, whole)

        def without(k):
            others = (jnp.sum(log_weights) - log_weights[k]) / (size - 1)
            return objective.of_group(log_weights.at[k].set(others), zeros)

        return whole - jax.vmap(without)(jnp.arange(size))
