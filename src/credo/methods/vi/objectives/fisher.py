"""The Fisher divergence, in the units of q (Hyvärinen 2005; the weighted form: Cai et al. 2024, eq. 2).

    D(q ‖ p) = E_q[(∇log p − ∇log q)ᵀ J Jᵀ (∇log p − ∇log q)] = E_z ‖∇_z (log p(T(z), D) − log q(T(z)))‖²,  J = ∂T/∂z

For a Gaussian J Jᵀ is its covariance, so that D is the same in all affine coordinates. It needs no normalising
constant, looks at p where q lies, and takes second derivatives of log p to minimise.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from credo.batches import in_batches
from credo.methods.vi.families.family import Family
from credo.methods.vi.objectives.objective import Objective
from credo.posterior.kinds import Kind
from credo.status import CredoError


@dataclass(frozen=True)
class FisherDivergence(Objective):
    """−½ D(q ‖ p), which is maximised. It needs a differentiable log density and draws that move with q."""

    def on_paths(self, family: Family, q: Kind, tangent, log_density, z, draws_at_once: int):
        """One term a draw, (K,); its derivative in ``tangent`` is the whole gradient."""
        if any(jnp.issubdtype(leaf.dtype, jnp.unsignedinteger) for leaf in jax.tree.leaves(z)):  # keys
            raise CredoError(
                "FisherDivergence() follows how a draw moves with its noise, and draws of Gamma(), Beta() and "
                "Dirichlet() are made from keys: take objective=ELBO(), or another family."
            )
        moved = family.move(q, tangent)

        def one(z):
            def log_weight(z):
                u = family.draw(q, tangent, z).u
                return log_density(u) - moved.log_prob_u(u)

            slopes = jax.grad(log_weight, allow_int=True)(z)
            length = sum(
                jnp.sum(jnp.square(slope)) for slope in jax.tree.leaves(slopes) if slope.dtype != jax.dtypes.float0
            )
            return -0.5 * jnp.exp(family.draw(q, tangent, z).log_share) * length

        return in_batches(one, z, draws_at_once)
