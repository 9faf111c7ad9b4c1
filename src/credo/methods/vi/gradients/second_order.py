"""Gradients of Gaussians by second derivatives (Bonnet 1964; Price 1958; Opper & Archambeau 2009, eq. 5–6).

    ∂E_q[f]/∂m = E_q[∇f],  ∂E_q[f]/∂Σ = ½ E_q[∇²f]          so that with u = m + S z, in the tangent (a, B) of q
    ∂E_q[f]/∂a = E[Sᵀ∇f],  ∂E_q[f]/∂B = E[Sᵀ∇²f S]          (lower triangle, or diagonal)

The second line replaces E[Sᵀ∇f zᵀ], the same by Stein's lemma: where ∇²f hardly varies over q there is hardly any
noise, and on a Gaussian target none wherever q is. A draw costs a gradient and dim products with its Hessian.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from credo.batches import in_batches
from credo.linalg.products import second_order
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.objectives.elbo import ELBO
from credo.posterior.kinds import Gaussian
from credo.status import CredoError


@dataclass(frozen=True)
class SecondOrder(Estimator):
    """For ``MeanField()`` and ``FullRank()``, and the ELBO: the least noise there is, at dim products a draw."""

    def check(self, objective, family, target, num_samples):
        super().check(objective, family, target, num_samples)
        if not isinstance(family, MeanField | FullRank) or not isinstance(objective, ELBO):
            raise CredoError(
                f"SecondOrder() rests on a theorem on Gaussians and the ELBO, and was given {type(family).__name__}() "
                f"and {type(objective).__name__}(): take StickingTheLanding()."
            )

    def gradients_a_draw(self, dim):
        return 1 + dim

    def surrogate(self, objective, family, q, tangent, log_density, z, known, draws_at_once):
        rest = jax.tree.map(jnp.zeros_like, tangent)
        along_mean, along_scale = tangent
        assert isinstance(q, Gaussian)
        S, unit = q.scale, jnp.eye(z.shape[1], dtype=z.dtype)

        def one(z):
            draw = family.draw(q, rest, z)
            value, gradient, product = second_order(log_density, draw.u)

            def column(e):
                pulled = S.transpose_matvec(product(S.matvec(e)))
                return jnp.dot(e, pulled) if along_scale.ndim == 1 else pulled

            return value - draw.path_log_prob, S.transpose_matvec(gradient), jax.vmap(column)(unit)

        value, g, G = jax.lax.stop_gradient(
            jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), in_batches(one, z, draws_at_once))
        )
        G = G if along_scale.ndim == 1 else jnp.tril(G)
        entropy = family.entropy(q, tangent)
        return value + jnp.sum(along_mean * g) + jnp.sum(along_scale * G) + entropy - jax.lax.stop_gradient(entropy)
