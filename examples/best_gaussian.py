"""Which Gaussian is best? Three answers for a skewed density, and for one with two modes.

Laplace matches the mode and its curvature. KL(q‖p), which ADVI minimises, dislikes mass of q where p has none: on a
skewed density it lies where most mass is, and of two modes it covers one. KL(p‖q) dislikes the contrary: its Gaussian
has p's own mean and variance, whatever lies between. (The picture is that of every textbook; here both divergences of
each fit are computed, by quadrature.)
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import credo

u = np.linspace(-12.0, 9.0, 20_001)
step = u[1] - u[0]


def skewed(params):
    """The log of a Gamma(2, 1) variable: its mode is log 2, its tail lies on the left."""
    return 2.0 * params["u"] - jnp.exp(params["u"])


def bimodal(params):
    modes = jnp.stack([dist.Normal(-1.8, 0.6).log_prob(params["u"]), dist.Normal(1.8, 0.6).log_prob(params["u"])])
    return jax.nn.logsumexp(modes + jnp.log(jnp.array([0.6, 0.4])))


def divergence(log_a, log_b):
    return np.sum(np.exp(log_a) * (log_a - log_b)) * step


methods = {
    "Laplace": credo.Laplace(),
    "KL(q‖p)": credo.ADVI(family=credo.vi.FullRank(), tolerance=1e-4),
    "KL(p‖q)": credo.ADVI(family=credo.vi.FullRank(), objective=credo.vi.InclusiveKL(512), num_samples=4_096),
}
figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
print("density   fit        mean     sd  KL(q‖p)  KL(p‖q)")
for log_density, axes in zip((skewed, bimodal), panels, strict=True):
    name = log_density.__name__
    target = credo.Model.from_log_density(log_density, {"u": dist.constraints.real}, {"u": ()}).given()
    log_p = np.asarray(jax.vmap(lambda v: log_density({"u": v}))(u), float)  # noqa: B023
    log_p -= np.log(np.sum(np.exp(log_p)) * step)
    axes.fill_between(u, np.exp(log_p), color="lightgrey", label="p")
    for colour, (fit, method) in zip(("black", "C0", "C1"), methods.items(), strict=True):
        posterior = credo.fit(target, method, key=1, start=np.array([-1.0]), progress=False)
        mean, sd = float(posterior.mean()["u"]), float(posterior.sd()["u"])
        log_q = -0.5 * ((u - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
        ways = divergence(log_q, log_p), divergence(log_p, log_q)
        print(f"{name:9} {fit:8} {mean:6.3f} {sd:6.3f} {ways[0]:8.3f} {ways[1]:8.3f}")
        axes.plot(u, np.exp(log_q), color=colour, label=fit)
    axes.set(title=f"a {name} density", xlabel="u", xlim=(-4.5, 4.5), ylim=(0, None))
panels[0].legend(frameon=False, loc="upper left")

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "output" / "best_gaussian.png"
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path, dpi=150)
