"""How many draws, and whether gradients, settle what a verdict says of an approximation; in whose space it is said."""

import time

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.diagnose.pareto import smooth
from credo.diagnose.rules import RULES
from credo.diagnose.verdict import judge
from credo.linalg.diagonal import Diagonal
from credo.methods.particles import correction
from credo.methods.particles.correction import correct
from credo.methods.particles.weighing import Drawn
from credo.posterior.kinds import Gaussian
from credo.precision import double

DIM, ROUND = 30, 1_000


def bare(dim: int):
    """A target that names the coordinates; the densities are those of the callables below."""
    support = {"x": dist.constraints.real_vector}
    return (
        credo.Model.from_log_density(lambda params: -params["x"] @ params["x"], support, {"x": (dim,)}).given().flat()
    )


class Weighing:
    """Draws of N(0, I) weighed against the normal of a mean and a precision; it counts what is asked of it."""

    def __init__(self, mean: np.ndarray, precision: np.ndarray, seed: int = 0, size: int = ROUND):
        self.mean, self.precision, self.seed, self.size = mean, precision, seed, size
        self.num_gradients = 0

    def draw(self, i: int):
        u = np.random.default_rng((self.seed, i)).normal(size=(self.size, self.mean.size))
        y = u - self.mean
        return u, 7.0 - 0.5 * np.einsum("si,ij,sj->s", y, self.precision, y) + 0.5 * (u**2).sum(axis=1)

    def gradient(self, u: np.ndarray) -> np.ndarray:
        self.num_gradients += len(u)
        return -(u - self.mean) @ self.precision

    def correct(self, **more):
        kind = Gaussian(np.zeros(self.mean.size), Diagonal(np.ones(self.mean.size)))
        with double():
            return correct(self.draw, self.gradient, kind, bare(self.mean.size), **more)


def chain(correlation: float) -> np.ndarray:
    """The precision of an autoregressive sequence, 1 on the diagonal: mean field's optimum is N(0, I)."""
    off = -correlation / (1 + correlation**2)
    return np.eye(DIM) + off * (np.eye(DIM, k=1) + np.eye(DIM, k=-1))


def test_an_exact_approximation_takes_one_round_and_no_gradient():
    weighing = Weighing(np.zeros(DIM), np.eye(DIM))
    found = weighing.correct()
    assert judge(found.figures).status == "pass"
    assert (found.num_draws, found.num_gradients, weighing.num_gradients) == (ROUND, 0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_settle_what_draws_cannot(seed):
    """Sds 4 % too small in 30 correlated dimensions: good, which densities alone would need tens of thousands for."""
    found = Weighing(np.zeros(DIM), chain(0.2), seed).correct()
    assert judge(found.figures).status == "pass"
    assert found.num_gradients == found.num_draws <= 2 * ROUND
    assert found.figures["log_sd_limit"] == pytest.approx(
        0.5 * np.log(np.diag(np.linalg.inv(chain(0.2))).max()), abs=5e-3
    )


@pytest.mark.parametrize("seed", range(4))
def test_draws_that_were_to_be_enough_and_are_not_give_way_to_gradients(seed):
    """Sds 5 % too small: the least that they may be off says that some thousands of draws will do, again and again."""
    found = Weighing(np.zeros(DIM), chain(0.22), seed, size=2 * ROUND).correct()
    assert judge(found.figures).status == "pass"
    assert found.num_gradients == found.num_draws <= 8 * ROUND


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("off", ["mean", "sd"])
def test_what_is_off_never_passes(seed, off):
    """A mean by 0.12 sd, or sds by 12 %, each just beyond the bound and far within the error of a thousand draws."""
    mean, precision = np.zeros(DIM), np.eye(DIM)
    if off == "mean":
        mean[3] = 0.12
    else:
        precision[3, 3] = 0.88**2
    found = Weighing(mean, precision, seed).correct()
    assert judge(found.figures).status == "doubtful"


def test_a_deadline_leaves_it_open():
    found = Weighing(np.zeros(DIM), chain(0.2)).correct(deadline=time.monotonic() - 1.0)
    assert found.num_draws == ROUND
    assert found.num_gradients == 0
    assert judge(found.figures).status == "doubtful"


def test_draws_are_rationed_where_data_are_large(monkeypatch):
    monkeypatch.setattr(correction, "LARGEST", 0)  # no gradients: draws alone, up to the most that are allowed
    free = Weighing(np.zeros(DIM), chain(0.18)).correct()
    monkeypatch.setattr(correction, "MOST_BYTES", 0)
    rationed = Weighing(np.zeros(DIM), chain(0.18)).correct()
    assert rationed.num_draws <= correction.FEW_ROUNDS * ROUND < free.num_draws
    assert judge(rationed.figures).status == "doubtful"  # what was not seen is not passed


def test_a_tail_of_weights_worth_99_percent_is_no_fault_where_nothing_can_reach_far():
    weighing = Weighing(np.zeros(DIM), np.eye(DIM))

    def heavy(i: int):
        rng = np.random.default_rng((1, i))
        return rng.normal(size=(ROUND, DIM)), np.log1p(3e-4 * rng.pareto(1.0, ROUND))

    weighing.draw = heavy
    assert smooth(heavy(0)[1]).k_hat > RULES["pareto_k"].passes
    assert weighing.correct().figures["pareto_k"] == 0.0


@pytest.mark.parametrize(("slab", "status"), [(0.0, "pass"), (0.05, "failed")])
def test_what_only_draws_that_reach_far_meet_is_no_pass(slab, status):
    """p is N(0, 1) beside a plane of 5 % of its height: rounds of q show nothing where they do not come that far, and
    draws of r have weights without a variance."""

    def draw(i: int):
        u = np.clip(np.random.default_rng((2, i)).normal(size=(ROUND, 2)), -2.5, 2.5)  # those that met nothing there
        return u, np.zeros(ROUND)

    def reach(i: int):
        rng = np.random.default_rng((3, i))
        z = rng.normal(size=(ROUND, 2)) * np.where(rng.random(ROUND) < 0.02, 8.0, 1.0)[:, None]
        log_wide = -0.5 * (z**2).sum(axis=1) / 64 - 2 * np.log(8.0) + 0.5 * (z**2).sum(axis=1)
        log_r = np.log(0.98 + 0.02 * np.exp(log_wide))  # over q
        far = (z**2).sum(axis=1)
        return Drawn(z, np.log1p(slab * np.expm1(np.minimum(0.5 * far, 600.0))) - log_r, -log_r)

    weighing = Weighing(np.zeros(2), np.eye(2))
    weighing.draw = draw
    assert judge(weighing.correct(reach=reach).figures).status == status


@pytest.mark.parametrize(("num_far", "status"), [(1, "pass"), (3, "pass"), (100, "failed")])
def test_a_few_draws_far_out_leave_the_word_to_draws_that_reach_there(num_far, status):
    """Weights of e^8 and more, at what hardly has a share of the mass; a hundred of them are a share."""

    def draw(i: int):
        rng = np.random.default_rng((4, i))
        far = np.where(np.arange(ROUND) < num_far, 8.0 + np.arange(ROUND), 0.0)
        return rng.normal(size=(ROUND, 2)), far + 0.01 * rng.normal(size=ROUND)

    def reach(i: int):
        z = np.random.default_rng((5, i)).normal(size=(ROUND, 2))
        return Drawn(z, np.zeros(ROUND), np.zeros(ROUND))

    weighing = Weighing(np.zeros(2), np.eye(2))
    weighing.draw = draw
    assert judge(weighing.correct(reach=reach).figures).status == status
    assert judge(weighing.correct().figures).status != "pass"


def test_what_is_compared_is_what_the_user_sees():
    """log scale ~ N(0, 1) in truth and N(0, 0.94²) in q: sds of the logs differ by 6 %, of the scales by far more."""
    model = credo.Model({"scale": dist.LogNormal(0.0, 1.0)}, None)
    rng = np.random.default_rng(3)

    def draw(i: int):
        u = 0.94 * rng.normal(size=(4 * ROUND, 1))
        return u, -0.5 * (u[:, 0] ** 2) * (1 - 1 / 0.94**2)

    def gradient(u: np.ndarray) -> np.ndarray:
        return -u

    with double():
        kind = Gaussian(np.zeros(1), Diagonal(np.full(1, 0.94)))
        seen = correct(draw, gradient, kind, model.given().flat()).figures
        unconstrained = correct(draw, gradient, kind, bare(1)).figures
    assert judge(unconstrained).status == "pass"
    assert judge(seen).status == "doubtful"


@pytest.mark.parametrize("seed", range(3))
def test_where_a_parameter_is_too_noisy_to_say_its_coordinate_may_tell(seed):
    """log scale ~ N(−6, 5²) in truth and N(0, 2.5²) in q: of the scale a few draws have the say."""
    model, rng = credo.Model({"scale": dist.LogNormal(-6.0, 5.0)}, None), np.random.default_rng(seed)

    def draw(i: int):
        u = 2.5 * rng.normal(size=(4 * ROUND, 1))
        return u, 0.5 * (u[:, 0] / 2.5) ** 2 - 0.5 * ((u[:, 0] + 6) / 5) ** 2

    with double():
        kind = Gaussian(np.zeros(1), Diagonal(np.full(1, 2.5)))
        found = correct(draw, lambda u: -(u + 6) / 25, kind, model.given().flat())
    assert RULES["pareto_k"].passes < found.figures["pareto_k"] < RULES["pareto_k"].doubtful
    assert found.figures["mean_shift"] > 0.5  # 6 / 5, less what is not certain


def test_entries_that_are_always_the_same_are_left_out():
    """Of the Cholesky factor of a correlation matrix: a one, and the zeros above the diagonal."""
    y = np.random.default_rng(0).multivariate_normal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], size=2_000)
    model = credo.Model(
        {"L": dist.LKJCholesky(2, 1.0)},
        lambda params, x: dist.MultivariateNormal(np.zeros((x.shape[0], 2)), scale_tril=params["L"]),
    )
    posterior = credo.fit(model.given(np.zeros(2_000), y), credo.Laplace(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["log_sd_limit"] > 0


@pytest.mark.parametrize("correlation", [-0.99, 0.9])
def test_an_exact_fit_of_ordered_parameters_moves_nothing(correlation):
    """Positions are normal and correlated: an entry in the user's space moves with both."""
    cov = np.array([[1.0, 0.3 * correlation], [0.3 * correlation, 0.09]])

    def log_density(params):
        low, high = params["cuts"]
        gap = high - low
        u = jnp.stack([low, jnp.log(gap)])
        return dist.MultivariateNormal(jnp.array([0.0, 1.2]), jnp.asarray(cov)).log_prob(u) - jnp.log(gap)

    model = credo.Model.from_log_density(log_density, {"cuts": dist.constraints.ordered_vector}, {"cuts": (2,)})
    verdict = credo.fit(model.given(), credo.Laplace(), progress=False).verdict
    assert verdict.status == "pass"
    assert verdict.figures["mean_shift"] < 1e-9


def two_counts(**derived):
    """Two shares whose level nobody knows: the marginals of a and b are the level's, and hide what the data say."""
    model = credo.Model(
        {"a": dist.Normal(0, 10), "b": lambda a: dist.Normal(a, 2)},
        lambda p, x: dist.Binomial(x["n"], logits=p["a"] - p["b"] + 0.0 * x["n"]),
        derived=derived,
    )
    return model.given({"n": np.array([12, 8])}, np.array([1, 0]))


def test_what_is_derived_is_judged_beside_the_parameters():
    """By quadrature the contrast is −2.646 ± 0.816; Laplace's is off by a quarter of that, and a and b by nothing."""
    verdict = credo.fit(two_counts(), credo.Laplace(), key=1).verdict
    assert verdict.status == "pass"
    for contrast in (lambda a, b: a - b, lambda a, b: jnp.stack([a, a - b])):
        posterior = credo.fit(two_counts(contrast=contrast), credo.Laplace(), key=1)
        assert posterior.verdict.status == "doubtful"
        assert 0.15 < posterior.verdict.figures["mean_shift"] < 0.26


def test_weighed_draws_answer_for_what_is_derived_too():
    """Of the sixth power of a normal variable far less is known than of itself: it takes more draws."""
    found = []
    for derived in ({}, {"high": lambda a, b: (a - b) ** 6}):
        proposal = credo.fit(two_counts(**derived), credo.Laplace(), key=1)
        found.append(credo.fit(two_counts(**derived), credo.Importance(proposal), key=1).verdict.figures)
    few, more = found
    assert more["num_draws"] > 2 * few["num_draws"] or more["log_sd_limit"] > 2 * few["log_sd_limit"]


def test_derived_quantities_that_are_many_or_no_numbers_are_left_out():
    from credo.methods.particles.scalars import MOST_DERIVED, derived_values, judged_values

    target = two_counts(
        wide=lambda a, b: jnp.broadcast_to(a, MOST_DERIVED),
        root=lambda a, b: jnp.sqrt(a),
        constant=lambda a: 0.0 * a + 3.0,
        sign=lambda a, b: jnp.stack([a > 2.5, a > b]),
        contrast=lambda a, b: a - b,
    ).flat()
    u = np.random.default_rng(0).normal(size=(3_000, 2))
    with double():
        np.testing.assert_allclose(derived_values(target, u), u[:, :1] - u[:, 1:])
        assert judged_values(target, u).shape == (3_000, 3)
