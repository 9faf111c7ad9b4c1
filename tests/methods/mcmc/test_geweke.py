"""Joint distribution tests (Geweke 2004): kernels against the models' own simulators, data and all.

Of (θ, y) drawn from prior and likelihood, the *successive-conditional* simulator
    y ~ p(y | θ),    θ ← one transition of the kernel that is to leave p(θ | y) invariant
leaves p(θ, y) invariant as well. Chains that start from exact draws of it must have the same joint distribution ever
after; a kernel, a density or a transform with a fault drifts away, further with each alternation. The transition comes
last: a kernel that ignored y would leave (θ, y) right as soon as y were drawn anew. Statistics are compared chain by
chain with where they began: the change has mean zero, and its error is known without any ESS.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.algorithm import Algorithm
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.elliptical_slice import elliptical_slice
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.independence import independence
from credo.methods.mcmc.integrators import SPLIT, Reference
from credo.methods.mcmc.mala import mala
from credo.methods.mcmc.nuts import nuts
from credo.methods.mcmc.random_walk import random_walk
from credo.methods.mcmc.slice import slice_sampling
from credo.model.target import Target
from credo.native import jit
from credo.posterior.kinds import Gaussian
from credo.precision import double, to_numpy

pytestmark = pytest.mark.slow

NUM_CHAINS, NUM_ALTERNATIONS = 5_000, 12
MAX_Z = 5.0  # of 9 to 13 statistics a case: one false alarm in 130,000 cases

X = np.array([[1.0, -1.2], [1.0, -0.3], [1.0, 0.4], [1.0, 1.5]])
NORMAL = credo.Model(
    {"mean": dist.Normal(1.0, 1.0), "scale": dist.LogNormal(0.0, 0.5)},
    lambda params, x: dist.Normal(params["mean"], params["scale"]).expand([4]),
)
SHARES = credo.Model(
    {"shares": dist.Dirichlet(np.array([2.0, 3.0, 4.0]))},
    lambda params, x: dist.CategoricalProbs(params["shares"]).expand([5]),
)
LOGISTIC = credo.Model(
    {"w": dist.Normal(0.0, 1.5).expand([2])}, lambda params, x: dist.BernoulliLogits(x @ params["w"])
)
MODELS: dict[str, Callable[[], Target]] = {
    "normal": lambda: NORMAL.given(y=np.zeros(4)),
    "shares": lambda: SHARES.given(y=np.array([0, 1, 2, 0, 1])),
    "logistic": lambda: LOGISTIC.given(X, np.array([0, 1, 0, 1])),
}
ANY = ("normal", "shares", "logistic")
TWO = Gaussian(np.zeros(2), Diagonal(np.array([1.5, 1.5])))


class Case(NamedTuple):
    """``make(target)``: the kernel on it. ``models``: on which it is tried."""

    make: Callable[[Target], Algorithm]
    models: tuple[str, ...] = ANY


KERNELS: dict[str, Case] = {  # a kernel joins by a line
    "nuts": Case(lambda target: nuts(target, step_size=0.5, max_depth=5)),
    "nuts, split": Case(lambda target: nuts(target, step_size=0.8, integrator=SPLIT, reference=near(target))),
    "hmc, split": Case(lambda t: hmc(t, step_size=0.35, num_steps=4, integrator=SPLIT, reference=near(t))),
    "hmc": Case(lambda target: hmc(target, step_size=0.4, num_steps=4)),
    "random walk": Case(lambda target: random_walk(target, step_size=0.8, num_steps=3)),
    "mala": Case(lambda target: mala(target, step_size=0.6, num_steps=3)),
    "slice": Case(lambda target: slice_sampling(target)),
    "elliptical slice": Case(lambda target: elliptical_slice(target, prior=TWO), ("logistic",)),
    "independence": Case(lambda target: independence(target, proposal=TWO, num_steps=3), ("logistic", "shares")),
}


def near(target: Target) -> Reference:
    """A Gaussian that trajectories turn round, not that of any of the models."""
    return Reference(np.full(target.dim, 0.3), np.bool_(True), np.asarray(np.pi / 3), np.bool_(False))


CASES = [(kernel, model) for kernel, case in KERNELS.items() for model in case.models]


def alternate(target, keys, *, make):
    """(positions, data) of all chains before and after."""

    def simulate(key, u):
        return target.model.draw_outcome(key, target.constrain(u), target.x).astype(target.y.dtype)

    def chain(data):
        k_prior, k_data, k_rest = jax.random.split(jax.random.wrap_key_data(data), 3)
        u = target.sample_prior(k_prior)
        y = simulate(k_data, u)

        def turn(state, key):
            u, _ = state
            k_step, k_data = jax.random.split(key)
            y = simulate(k_data, u)
            algorithm = make(dataclasses.replace(target, y=y))
            return (algorithm.step(k_step, algorithm.init(k_step, u))[0].position, y), None

        after, _ = jax.lax.scan(turn, (u, y), jax.random.split(k_rest, NUM_ALTERNATIONS))
        return (u, y), after

    return jax.lax.map(chain, keys)


def statistics(target, pairs) -> dict[str, np.ndarray]:
    """Of all chains: moments of positions and data, how they go together, and the joint log likelihood."""
    u, y = pairs

    def log_likelihood(u, y):
        return jnp.sum(dataclasses.replace(target, y=y).log_likelihood(u))

    mean = y.mean(axis=1)
    columns = {"y": mean, "y²": np.tanh(np.mean(y.astype(float) ** 2, axis=1)), "log p(y | θ)": None}
    columns["log p(y | θ)"] = np.tanh(np.asarray(jax.jit(jax.vmap(log_likelihood))(u, y)) / 10)
    for i, v in enumerate(u.T):
        columns |= {f"u[{i}]": v, f"u[{i}]²": np.tanh(v**2), f"u[{i}] > 0": v > 0, f"u[{i}] y": np.tanh(v * mean)}
    return {name: np.asarray(column, float) for name, column in columns.items()}


def z_values(make, target) -> tuple[dict[str, float], float]:
    """(z of the change of each statistic, the share of chains that moved)."""
    with double():
        keys = np.random.default_rng(1).integers(0, 2**32, (NUM_CHAINS, 2), np.uint32)
        before, after = to_numpy(jit(alternate, static_argnames=("make",))(target, keys, make=make))
        was, now = statistics(target, before), statistics(target, after)
    changes = {name: now[name] - was[name] for name in was}
    z = {name: float(d.mean() / (d.std() / np.sqrt(NUM_CHAINS))) for name, d in changes.items()}
    return z, float(np.mean(np.any(before[0] != after[0], axis=1)))


@pytest.mark.parametrize(("kernel", "model"), CASES)
def test_joint_distribution_is_invariant(kernel, model):
    z, share_moved = z_values(KERNELS[kernel].make, MODELS[model]().flat())
    assert share_moved > 0.9, "the chains hardly move"
    assert max(map(abs, z.values())) < MAX_Z, z


# planted faults -------------------------------------------------------------------------------------------------------


class Faulty(eqx.Module):
    """A target whose density has a fault."""

    target: Target
    density: Callable = eqx.field(static=True)

    def flat(self):
        return self

    def log_density(self, u):
        return self.density(self.target, u)


def accepts_too_much(target) -> Algorithm:
    """A random walk on which a fall of more than half a nat counts as one of half a nat."""
    right = random_walk(target, step_size=0.8)

    def step(key, state):
        k_move, k_accept = jax.random.split(key)
        new = right.init(key, state.position + 0.8 * jax.random.normal(k_move, state.position.shape))
        log_ratio = jnp.maximum(new.log_density - state.log_density, -0.5)
        is_accepted = jnp.log(jax.random.uniform(k_accept)) < log_ratio
        return jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), new, state), None

    return Algorithm(right.init, step)


FAULTS: dict[str, tuple[Callable, str]] = {
    "a wrong acceptance": (accepts_too_much, "normal"),
    "no Jacobian": (
        lambda t: hmc(Faulty(t, lambda t, u: t.log_density(u) - t.log_jacobian(u)), step_size=0.4, num_steps=4),
        "normal",
    ),
    "no Jacobian of a simplex": (
        lambda t: nuts(Faulty(t, lambda t, u: t.log_density(u) - t.log_jacobian(u)), step_size=0.5, max_depth=5),
        "shares",
    ),
    "the prior twice": (
        lambda t: nuts(Faulty(t, lambda t, u: t.log_density(u) + t.log_prior(u)), step_size=0.5, max_depth=5),
        "logistic",
    ),
    "rows out of order": (
        lambda t: hmc(dataclasses.replace(t, y=t.y[::-1]), step_size=0.4, num_steps=4),
        "logistic",
    ),
    "the data ignored": (
        lambda t: hmc(Faulty(t, lambda t, u: t.log_prior(u)), step_size=0.4, num_steps=4),
        "logistic",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    make, model = FAULTS[fault]
    z, _ = z_values(make, MODELS[model]().flat())
    assert max(map(abs, z.values())) > 2 * MAX_Z, z
