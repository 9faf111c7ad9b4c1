"""Non-reversible parallel tempering (Geyer 1991; Syed, Bouchard-Côté, Deligiannidis & Doucet 2022).

K + 1 replicas u_0 … u_K, one at each member of a path from a reference π_0 that can be drawn from to the posterior,
    log γ_k(u) = log π_0(u) + β_k ℓ(u),  0 = β_0 < … < β_K = 1          log_base = log π_0, gain = ℓ, betas = β
π_0 is the prior and ℓ the log likelihood; or π_0 has a density, and ℓ is the log density of the target less its log.
A step is a round for the pairs k, k + 1 of even k and one for those of odd k. A round
    explores: one HMC transition a replica (hmc.py), all of the same number of leapfrog steps; u_0 is drawn anew
    swaps:    u_k and u_{k+1} with probability min(1, exp((β_{k+1} − β_k)(ℓ(u_k) − ℓ(u_{k+1}))))
Even and odd rounds in turn carry a replica on in one direction while its swaps are accepted, so that its way from π_0
to the posterior takes of the order of K rounds and not K². It is a *round trip* where a replica reaches β_K that was
drawn from π_0 since it was there last: it has forgotten the mode that it came from.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm
from credo.gradients import value_and_gradient
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import MAX_ENERGY_ERROR
from credo.methods.mcmc.random_walk import is_undefined
from credo.posterior.kinds import Kind
from credo.tree import where


class Replicas(NamedTuple):
    """Arrays with an axis of replicas in front. ``is_fresh``: drawn from π_0 since last at β_K."""

    position: Float[Array, "replica dim"]
    log_base: Float[Array, " replica"]
    gain: Float[Array, " replica"]
    base_gradient: Float[Array, "replica dim"]
    gain_gradient: Float[Array, "replica dim"]
    is_fresh: Bool[Array, " replica"]

    @classmethod
    def like(cls, position) -> "Replicas":
        """Right in shapes and types alone."""
        each = position.sum(axis=1)
        return cls(position, each, each, position, position, each > 0)


class Info(NamedTuple):
    """Means over the two rounds: ``acceptance`` α of exploring; ``rejection`` of a swap of each two neighbours.

    ``is_divergent``, ``step_size``: of the replica at the posterior. ``num_steps``: gradients of all replicas.
    """

    acceptance: Float[Array, " replica"]
    rejection: Float[Array, " pair"]
    is_divergent: Bool[Array, ""]
    num_round_trips: Int[Array, ""]
    num_steps: Int[Array, ""]
    step_size: Float[Array, ""]


def parallel_tempering(
    target,
    *,
    betas: Float[Array, " replica"],
    step_size: Float[Array, " replica"],
    num_steps: int,
    reference: Kind | None = None,
    metric: ScaleOperator | None = None,
) -> Algorithm:
    """Replicas of ``target`` (positions in R^dim), explored by ``num_steps`` leapfrog steps on average.

    ``reference``: π_0; None for the prior. ``metric``: S of each replica, its arrays with an axis of replicas in front;
    identity if None. ``betas`` may have ties, between which nothing is swapped; u_0 is drawn anew where β_0 = 0.
    """
    target = target.flat()

    def evaluate(u) -> Replicas:
        """Of one replica."""
        false = jnp.bool_(False)
        if reference is None:
            log_base, base_gradient = value_and_gradient(target.log_prior)(u)
            gain, gain_gradient = value_and_gradient(lambda u: jnp.sum(target.log_likelihood(u)))(u)
        else:
            log_base, base_gradient = value_and_gradient(reference.log_prob_u)(u)
            log_density, gradient = value_and_gradient(target.log_density)(u)
            gain, gain_gradient = log_density - log_base, gradient - base_gradient
        gain = jnp.where(is_undefined(gain), -jnp.inf, gain)  # γ is 0 there too
        return Replicas(u, log_base, gain, base_gradient, gain_gradient, false)

    def draw(key) -> Replicas:
        u = target.sample_prior(key) if reference is None else reference.sample_u(key)
        return evaluate(u)._replace(is_fresh=jnp.bool_(True))

    def explore(start: Replicas, momentum, uniform, beta, epsilon, scale, last):
        """One HMC transition of one replica -> (replica, α, whether it diverged)."""
        scale = Diagonal(jnp.ones_like(momentum)) if scale is None else scale

        def force(replica: Replicas):
            return scale.transpose_matvec(replica.base_gradient + beta * replica.gain_gradient)

        def leap(_, now):
            replica, r = now
            r = r + 0.5 * epsilon * force(replica)
            replica = evaluate(replica.position + epsilon * scale.matvec(r))
            return replica, r + 0.5 * epsilon * force(replica)

        end, r = lax.fori_loop(0, last, leap, (start, momentum))
        fall = end.log_base - start.log_base + beta * (end.gain - start.gain)
        fall = fall + 0.5 * jnp.sum(momentum * momentum) - 0.5 * jnp.sum(r * r)
        is_divergent = ~(fall > -MAX_ENERGY_ERROR)  # NaN is one too
        acceptance = jnp.where(is_divergent, 0, jnp.exp(jnp.minimum(fall, 0)))
        end = end._replace(is_fresh=start.is_fresh)
        return where(uniform < acceptance, end, start), acceptance, is_divergent

    def swap(replicas: Replicas, uniform, parity):
        """-> (replicas, probability of a rejection of each pair)."""
        k, gain = jnp.arange(betas.size - 1), replicas.gain
        log_ratio = (betas[1:] - betas[:-1]) * (gain[:-1] - gain[1:])
        acceptance = jnp.where(jnp.isnan(log_ratio), 0, jnp.exp(jnp.minimum(log_ratio, 0)))
        is_swapped = (uniform < acceptance) & (k % 2 == parity) & (betas[1:] > betas[:-1])
        none = jnp.zeros(1, bool)
        up, down = jnp.concatenate([is_swapped, none]), jnp.concatenate([none, is_swapped])
        source = jnp.arange(betas.size) + up.astype(int) - down.astype(int)
        return jax.tree.map(lambda a: a[source], replicas), 1 - acceptance

    def one_round(key, replicas: Replicas, parity):
        num, dim = replicas.position.shape
        dtype = replicas.position.dtype
        k_noise, k_draw = jax.random.split(key)
        momentum, u = start_of_transition(k_noise, num * dim, (2 * num,), dtype)
        last = 1 + jnp.floor(u[0] * (2 * num_steps - 1)).astype(jnp.int32)
        explored = jax.vmap(explore, in_axes=(0, 0, 0, 0, 0, 0, None))(
            replicas, momentum.reshape(num, dim), u[1 : num + 1], betas, step_size, metric, last
        )
        replicas, acceptance, is_divergent = explored
        is_drawn = (betas == 0) & (jnp.arange(num) == 0)
        replicas = jax.tree.map(lambda new, old: _where(is_drawn, new[None], old), draw(k_draw), replicas)
        replicas, rejection = swap(replicas, u[num + 1 :], parity)
        arrived = replicas.is_fresh[-1]
        replicas = replicas._replace(is_fresh=replicas.is_fresh & (jnp.arange(num) < num - 1))
        return replicas, (acceptance, rejection, is_divergent[-1], arrived.astype(jnp.int32), last * num + 1)

    def init(key, position: Float[Array, "replica dim"]) -> Replicas:
        return jax.vmap(evaluate)(position)

    def step(key, replicas: Replicas) -> tuple[Replicas, Info]:
        def next_round(replicas, now):
            return one_round(now[0], replicas, now[1])

        keys = jax.random.split(key)
        replicas, told = lax.scan(next_round, replicas, (keys, jnp.arange(2)))
        acceptance, rejection, is_divergent, arrived, num_gradients = told
        size = jnp.asarray(step_size)[-1]
        return replicas, Info(
            acceptance.mean(axis=0),
            rejection.mean(axis=0),
            is_divergent.any(),
            arrived.sum(),
            num_gradients.sum(),
            size,
        )

    return Algorithm(init, step)


def _where(condition: Bool[Array, " replica"], x: Any, y: Any):
    """Replica by replica."""
    return jnp.where(condition.reshape(-1, *(1,) * (y.ndim - 1)), x, y)
