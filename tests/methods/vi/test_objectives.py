"""Objectives: their weights are derivatives, their values bound the evidence as theory says, in closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.estimator import grouped_noise
from credo.methods.vi.gradients.reparameterised import Reparameterised
from credo.methods.vi.gradients.score_function import ScoreFunction
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.inclusive import InclusiveKL
from credo.methods.vi.objectives.powers import ChiUpper, ImportanceWeighted, Renyi, log_moment
from credo.posterior.kinds import Gaussian
from credo.precision import double
from credo.status import CredoError

OBJECTIVES = {
    "elbo": ELBO(),
    "importance": ImportanceWeighted(2),
    "renyi": Renyi(0.5, 2),
    "renyi_2": Renyi(2.0, 2),
    "chi": ChiUpper(2),
    "inclusive": InclusiveKL(2),
}
ESTIMATORS = {
    "sticking": StickingTheLanding(),
    "reparameterised": Reparameterised(),
    "score": ScoreFunction(rao_blackwell=False),
    "plain_score": ScoreFunction(baseline=False, rao_blackwell=False),
}
STICKING = {"sticking": StickingTheLanding()}
LOG_Z = 0.7
NUM_REPEATS = 4_000
NUM_ERRORS = 4.5  # two-sided false-alarm rate 7e-6 a number, of which there are fewer than 100
FAMILY = MeanField()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def log_density(u):
    """Skewed, of one dimension."""
    return -0.5 * jnp.sum(u**2) + jnp.sum(jax.nn.log_sigmoid(2 * u))


def log_normal(u):
    """exp(LOG_Z) N(0, 1)."""
    return LOG_Z - 0.5 * jnp.sum(u**2) - 0.5 * jnp.log(2 * jnp.pi)


def member(mean=0.4, sd=0.8):
    return Gaussian(jnp.asarray([mean]), Diagonal(jnp.asarray([sd])))


def log_weight(q, xi, z):
    """ℓ of the draw of noise z from q moved, all of it differentiable."""
    u = FAMILY.draw(q, xi, z[None]).u
    return log_density(u) - FAMILY.move(q, xi).log_prob_u(u)


def expected(function, num):
    """E over ``num`` independent standard normal numbers, by product quadrature."""
    grid = np.stack(np.meshgrid(*[NODES] * num, indexing="ij"), axis=-1).reshape(-1, num)
    weights = np.prod(np.stack(np.meshgrid(*[WEIGHTS] * num, indexing="ij"), axis=-1).reshape(-1, num), axis=1)
    return jnp.dot(weights, jax.vmap(function)(jnp.asarray(grid)))


def exact_gradient(objective, q):
    """Of the expected objective, in the tangent; that of the inclusive divergence by its definition."""
    num = objective.group_size

    def value(xi):
        def at(z):
            if objective.is_derivative:
                weights = jax.vmap(lambda z: log_weight(q, xi, z))(z)
                return objective.of_group(weights, jnp.zeros(num))
            weights = jax.vmap(lambda z: log_weight(q, FAMILY.rest(q), z))(z)
            u = jax.vmap(lambda z: FAMILY.draw(q, FAMILY.rest(q), z[None]).u)(z)
            return jnp.dot(jax.nn.softmax(weights), jax.vmap(FAMILY.move(q, xi).log_prob_u)(u))

        return expected(at, num)

    return np.concatenate(jax.grad(value)(FAMILY.rest(q)))


def drawn_gradients(objective, estimators, q, density=log_density, num_repeats=NUM_REPEATS):
    """Repeated estimates (repeats, coordinates), by name of estimator, in one compiled program."""
    num_samples = objective.num_samples(4)

    def one(key, estimator):
        z = estimator.noise(objective, FAMILY, key, num_samples, 1)

        def surrogate(xi):
            return estimator.surrogate(objective, FAMILY, q, xi, density, z, None, num_samples)

        return jnp.concatenate(jax.grad(surrogate)(FAMILY.rest(q)))

    keys = jax.random.split(jax.random.key(0), num_repeats)
    every = jax.jit(lambda keys: {n: jax.vmap(lambda key, e=e: one(key, e))(keys) for n, e in estimators.items()})
    return {name: np.asarray(drawn) for name, drawn in every(keys).items()}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_estimator_of_every_objective_is_unbiased(objective):
    """Against the gradient of the expected objective of groups of two, by quadrature."""
    with double():
        exact = exact_gradient(OBJECTIVES[objective], member())
        for name, drawn in drawn_gradients(OBJECTIVES[objective], ESTIMATORS, member()).items():
            errors = drawn.std(axis=0) / np.sqrt(NUM_REPEATS)
            np.testing.assert_array_less(
                np.abs(drawn.mean(axis=0) - exact), NUM_ERRORS * errors + 1e-9, err_msg=f"{objective}, {name}"
            )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_path_derivatives_leave_no_noise_at_the_posterior(objective):
    """The doubly reparameterised gradient: every single estimate vanishes, whatever the objective."""
    with double():
        drawn = drawn_gradients(OBJECTIVES[objective], STICKING, member(0.0, 1.0), log_normal, 20)["sticking"]
        assert np.abs(drawn).max() < 1e-12


@pytest.mark.parametrize("objective", [ImportanceWeighted(4), Renyi(0.3, 4), Renyi(1.0, 4), ChiUpper(4)])
def test_weights_are_derivatives_of_the_objective(objective):
    with double():
        weights, shares = jnp.asarray([0.3, -1.0, 2.0, 0.1]), jnp.log(jnp.asarray([0.5, 1.5, 1.2, 0.8]))
        zeros = jnp.zeros(4)
        slope = jax.grad(objective.of_group)(weights, zeros)
        bend = jnp.diagonal(jax.hessian(objective.of_group)(weights, zeros))
        np.testing.assert_allclose(objective.path_weights(weights), slope - bend, rtol=1e-10)
        slope = jax.grad(objective.of_group)(weights, shares)
        total = np.sum(slope)
        np.testing.assert_allclose(
            objective.score_weights(weights, shares), -(slope - total * np.exp(shares) / 4), rtol=1e-10, atol=1e-12
        )


def test_the_inclusive_divergence_is_zero_at_the_posterior_and_positive_elsewhere():
    with double():
        at = InclusiveKL(4).of_group(jnp.full(4, LOG_Z), jnp.zeros(4))
        away = InclusiveKL(4).of_group(jnp.asarray([0.3, -1.0, 2.0, 0.1]), jnp.zeros(4))
        np.testing.assert_allclose(at, 0.0, atol=1e-12)
        assert away < 0


def values(objective, q, density, num_groups=4_000):
    """Estimates of the objective, one a group."""
    z = grouped_noise(objective, FAMILY, jax.random.key(1), num_groups * objective.group_size, 1)
    draw = jax.vmap(lambda z: FAMILY.draw(q, FAMILY.rest(q), z))(z)
    weights = jax.vmap(density)(draw.u) - draw.path_log_prob
    return np.asarray(objective.terms(weights, jnp.zeros_like(weights)))


def chi_upper(mean, sd):
    """½ log ∫ p²/q of p = exp(LOG_Z) N(0, 1) and q = N(mean, sd²): finite for 2 sd² > 1."""
    return LOG_Z + 0.5 * (np.log(sd**2 / np.sqrt(2 * sd**2 - 1)) + mean**2 / (2 * sd**2 - 1))


def test_the_chi_square_bound_and_its_gradient_in_closed_form():
    with double():
        q, objective = member(0.3, 1.1), ChiUpper(2_000)
        found = values(objective, q, log_normal, 100)
        bias = 0.01  # of 2,000 draws: half the relative variance of their mean of w², which is below 20
        assert abs(-found.mean() - chi_upper(0.3, 1.1)) < NUM_ERRORS * found.std() / 10 + bias
        assert chi_upper(0.3, 1.1) > LOG_Z
        drawn = drawn_gradients(objective, STICKING, q, log_normal, 100)["sticking"]
        step = 1e-5
        slope = [
            -1.1 * (chi_upper(0.3 + step, 1.1) - chi_upper(0.3 - step, 1.1)) / (2 * step),
            -1.1 * (chi_upper(0.3, 1.1 + step) - chi_upper(0.3, 1.1 - step)) / (2 * step),
        ]
        np.testing.assert_allclose(drawn.mean(axis=0), slope, atol=NUM_ERRORS * drawn.std(axis=0).max() / 10 + bias)


@pytest.mark.slow
def test_bounds_are_ordered_as_theory_says():
    """ELBO ≤ Rényi ≤ importance-weighted, which rises with its draws, ≤ log p(D) ≤ χ²: q is the same throughout."""
    with double():
        q = member(0.5, 0.9)
        found = {
            "elbo": values(ELBO(), q, log_normal),
            "renyi": values(Renyi(0.5, 8), q, log_normal),
            "importance_8": values(ImportanceWeighted(8), q, log_normal),
            "importance_64": values(ImportanceWeighted(64), q, log_normal),
        }
        means = [each.mean() for each in found.values()]
        errors = [NUM_ERRORS * each.std() / np.sqrt(each.size) for each in found.values()]
        assert all(low + e < high for low, high, e in zip(means, means[1:], errors, strict=False))
        assert means[-1] < LOG_Z + errors[-1]
        exact = LOG_Z - (0.5 * (0.81 + 0.25 - 1) - np.log(0.9))  # KL of normals
        assert abs(means[0] - exact) < errors[0]
        assert chi_upper(0.5, 0.9) > LOG_Z


def test_renyi_becomes_the_others_at_its_ends():
    with double():
        weights, shares = jnp.asarray([0.3, -1.0, 2.0, 0.1]), jnp.zeros(4)
        elbo, importance = ELBO()(weights, shares), ImportanceWeighted(4)(weights, shares)
        np.testing.assert_allclose(Renyi(1.0, 4)(weights, shares), elbo, rtol=1e-12)
        np.testing.assert_allclose(Renyi(1.0 - 1e-7, 4)(weights, shares), elbo, rtol=1e-5)
        np.testing.assert_allclose(Renyi(0.0, 4)(weights, shares), importance, rtol=1e-12)
        np.testing.assert_allclose(-ChiUpper(4)(weights, shares), log_moment(weights, shares, 2.0), rtol=1e-12)


PRECISION = np.array([[2.0, 0.7], [0.7, 1.0]])
CENTER = np.array([0.5, -0.3])
FULL_RANK = FullRank()


def gaussian_density(u):
    return -0.5 * (u - CENTER) @ PRECISION @ (u - CENTER)


def fisher(q):
    """−½ (‖I − LᵀΛL‖² + ‖LᵀΛ(m − μ)‖²) of Gaussians."""
    L = q.scale.lower
    return -0.5 * (
        jnp.sum((jnp.eye(2) - L.T @ PRECISION @ L) ** 2) + jnp.sum((L.T @ PRECISION @ (q.mean - CENTER)) ** 2)
    )


@pytest.mark.parametrize("estimator", [StickingTheLanding(), Reparameterised()])
def test_the_fisher_divergence_of_gaussians_in_closed_form(estimator):
    with double():
        q = Gaussian(jnp.asarray([0.1, 0.2]), Dense(jnp.asarray([[0.6, 0.0], [-0.2, 0.9]])))

        def one(key):
            z = estimator.noise(FisherDivergence(), FULL_RANK, key, 2, 2)

            def surrogate(xi):
                return estimator.surrogate(FisherDivergence(), FULL_RANK, q, xi, gaussian_density, z, None, 2)

            value, (a, B) = jax.value_and_grad(surrogate)(FULL_RANK.rest(q))
            return jnp.concatenate([value[None], a, B[np.tril_indices(2)]])

        drawn = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4_000)))
        a, B = jax.grad(lambda xi: fisher(FULL_RANK.move(q, xi)))(FULL_RANK.rest(q))
        exact = np.concatenate([[fisher(q)], a, B[np.tril_indices(2)]])
        errors = drawn.std(axis=0) / np.sqrt(len(drawn))
        np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - exact), NUM_ERRORS * errors + 1e-12)


def test_wrong_settings_are_refused():
    for make in (lambda: ImportanceWeighted(0), lambda: ChiUpper(1), lambda: InclusiveKL(1)):
        with pytest.raises(CredoError, match="draws or more"):
            make()
    with pytest.raises(CredoError, match="finite order"):
        Renyi(float("inf"))
    with pytest.raises(CredoError, match=r"Renyi\(alpha=-1.0\): below 0 it bounds the evidence from above.*ChiUpper"):
        Renyi(-1.0)


def test_groups_are_whole_and_come_in_pairs():
    assert ELBO().num_samples(5) == 5
    assert ImportanceWeighted(8).num_samples(16) == 16
    assert ImportanceWeighted(8).num_samples(17) == 32
    assert ChiUpper(64).num_samples(16) == 128
