"""Group effects: coefficients that vary by group around zero, with standard deviations learnt from all groups.

    b_g = diag(σ) L z_g,  z_g ~ N(0, I),  σ_k ~ HalfNormal(s),  L Lᵀ ~ LKJ(η)     for groups g = 1 … G

Where the data say little of each group the parameter is z (not centred): the posterior has no funnel there. Where they
say much it is b (centred), which then hardly depends on σ; see informed.py. L is built from the partial correlations
p_ij of the C-vine (Lewandowski, Kurowicka & Joe, 2009, section 2.4), which have the density of LKJ(η) where
(p_ij + 1)/2 ~ Beta(b_j, b_j), b_j = η + (K − 2 − j)/2 in column j = 0 …. With two effects there is one of them, and it
is their correlation.
"""

from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform

from credo.model.prior import Conditional

LKJ = 2.0  # η: 1 is uniform over correlation matrices, 2 leans away from ±1
GROUP_SD = 1.0  # scale of the half-normal prior of σ, in units of the link (of sd(y) for gaussian)


@dataclass(frozen=True)
class GroupTerm:
    """One ``( … | group)``. ``key``: the input column of the groups, and the first part of its parameters' names.

    ``effects``: what varies, "intercept" or a column. Inputs: x[key] (N,) the groups, x[key + " design"] (N, K).
    Parameters: key + "_sd" (K,), "_correlation" (K (K − 1)/2,) if correlated, and "_standardised" (G, K), z, from which
    "_effect", b, is derived; with ``is_centred`` "_effect" itself.
    """

    key: str
    label: str
    effects: tuple[str, ...]
    is_correlated: bool
    is_centred: bool = False

    def prior(self, num_groups: int, unit: float) -> dict[str, Any]:
        """``unit``: the standard deviation of the outcome on the link's scale."""
        k = len(self.effects)
        priors: dict[str, Any] = {f"{self.key}_sd": dist.HalfNormal(GROUP_SD * unit).expand([k])}
        if self.is_correlated:
            column = np.concatenate([np.arange(row) for row in range(1, k)])
            b = LKJ + (k - 2 - column) / 2
            onto = AffineTransform(-1.0, 2.0, domain=constraints.unit_interval)
            priors[f"{self.key}_correlation"] = dist.TransformedDistribution(dist.Beta(b, b), onto)
        if self.is_centred:
            priors[f"{self.key}_effect"] = Conditional(EffectsPrior(num_groups, self), self.parameters[:-1])
        else:
            priors[f"{self.key}_standardised"] = dist.Normal(0.0, 1.0).expand([num_groups, k])
        return priors

    def predictor(self, params, x):
        """Σ_k b_gk x_k, (M,)."""
        named = [params[name] for name in self.parameters]
        effects = named[-1] if self.is_centred else self.scaled(*named)
        return jnp.sum(effects[x[self.key]] * x[f"{self.key} design"], axis=-1)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The last has a row a group."""
        correlation = ("correlation",) if self.is_correlated else ()
        parts = ("sd", *correlation, "effect" if self.is_centred else "standardised")
        return tuple(f"{self.key}_{part}" for part in parts)

    def scaled(self, sd, *rest):
        """b (G, K) from the parameters in their order."""
        *correlation, z = rest
        z = z @ cholesky(correlation[0], len(self.effects)).T if correlation else z
        return z * sd

    @property
    def derived(self) -> "dict[str, Effects]":
        return {} if self.is_centred else {f"{self.key}_effect": Effects(self)}

    def sentences(self, unit: float) -> list[str]:
        named = " and ".join(self.effects) if len(self.effects) < 3 else ", ".join(self.effects)
        lines = [f"sd over {self.label} of {named}: HalfNormal({GROUP_SD * unit:.3g})"]
        if self.is_correlated:
            lines.append(f"correlation over {self.label} of {named}: LKJ({LKJ:g})")
        elif len(self.effects) > 1:
            lines.append(f"effects of {self.label}, {named}: independent of one another")
        return lines

    def labels(self, levels) -> dict[str, str]:
        """Scalar name -> words."""
        k = len(self.effects)
        pairs = (
            [(self.effects[i], self.effects[j]) for i in range(1, k) for j in range(i)] if self.is_correlated else []
        )
        kind = "correlation" if k == 2 else "partial correlation"
        return (
            {f"{self.key}_sd[{i}]": f"sd over {self.label}: {effect}" for i, effect in enumerate(self.effects)}
            | {f"{self.key}_correlation[{i}]": f"{kind} over {self.label}: {a}, {b}" for i, (a, b) in enumerate(pairs)}
            | {
                f"{self.key}_{part}[{g},{i}]": f"{self.label} = {level}: {effect}{note}"
                for part, note in (("effect", ""), *([] if self.is_centred else [("standardised", " (standardised)")]))
                for g, level in enumerate(levels)
                for i, effect in enumerate(self.effects)
            }
        )


@dataclass(frozen=True)
class Effects:
    """The derived quantity b (G, K) of a group term, as a function of its parameters by name."""

    term: GroupTerm

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.term.parameters])

    def __call__(self, *arguments, **named):
        return self.term.scaled(*arguments, *(named[name] for name in self.term.parameters[len(arguments) :]))


@dataclass(frozen=True)
class EffectsPrior:
    """b_g ~ N(0, diag(σ) L Lᵀ diag(σ)), a row a group, given σ and the correlations by name."""

    num_groups: int
    term: GroupTerm

    def __call__(self, **earlier):
        sd, *correlation = (earlier[name] for name in self.term.parameters[:-1])
        if not correlation:
            return dist.Normal(0.0, sd).expand([self.num_groups, len(self.term.effects)])
        factor = sd[:, None] * cholesky(correlation[0], len(self.term.effects))
        return dist.MultivariateNormal(jnp.zeros(len(factor)), scale_tril=factor).expand([self.num_groups])


def cholesky(partial, k: int):
    """L (K, K) from the partial correlations (K (K − 1)/2,), row by row below the diagonal."""
    rows, columns = np.tril_indices(k, -1)
    p = jnp.zeros((k, k)).at[rows, columns].set(partial)
    # L_ij = p_ij Π_{m<j} √(1 − p_im²), L_ii = Π_{m<i} √(1 − p_im²)
    left = jnp.cumprod(jnp.sqrt(1 - p**2), axis=1)
    left = jnp.concatenate([jnp.ones((k, 1)), left[:, :-1]], axis=1)
    return (p + jnp.eye(k)) * left
