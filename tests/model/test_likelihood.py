"""The likelihood: against scipy, by row, in minibatches, weighted, joint, with several outcomes."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from credo.model.data import Rows
from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError

rng = np.random.default_rng(11)
N = 6
X = rng.normal(size=(N, 2))
Y = rng.normal(size=N)
U = np.array([0.4, -0.7, 0.3])
PRIOR = {"w": dist.Normal(0.0, 2.0).expand([2]), "sigma": dist.HalfNormal(1.0)}


def line(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


MODEL = Model(PRIOR, line)


@jax.jit
def log_density(target, u, batch=None):
    return target.log_density(u, batch)


@jax.jit
def log_likelihood(target, u, batch=None):
    return target.log_likelihood(u, batch)


def value(target, u=U, batch=None):
    with double():
        return float(log_density(target.flat(), u, batch))


def terms(target, u=U, batch=None):
    with double():
        return np.asarray(log_likelihood(target.flat(), u, batch))


def test_regression_by_hand():
    sigma = np.exp(U[2])
    rows = stats.norm.logpdf(Y, X @ U[:2], sigma)
    prior = stats.norm.logpdf(U[:2], 0, 2).sum() + stats.halfnorm.logpdf(sigma) + U[2]
    target = MODEL.given(X, Y)
    assert (target.size, target.num_terms, target.dim) == (N, N, 3)
    np.testing.assert_allclose(terms(target), rows, rtol=1e-12)
    np.testing.assert_allclose(value(target), prior + rows.sum(), rtol=1e-12)
    np.testing.assert_allclose(terms(target, batch=np.array([4, 1])), rows[[4, 1]], rtol=1e-12)
    handed = Rows(X[2:4], Y[2:4])
    np.testing.assert_allclose(terms(target, batch=handed), rows[2:4], rtol=1e-12)
    np.testing.assert_allclose(value(target, batch=handed), prior + N / 2 * rows[2:4].sum(), rtol=1e-12)


@jax.jit
def over_all_batches(target, u, batches):
    estimates, gradients = jax.vmap(jax.value_and_grad(target.log_density), (None, 0))(u, batches)
    return estimates, gradients, *jax.value_and_grad(target.log_density)(u)


@pytest.mark.parametrize("weights", [None, rng.uniform(0, 3, N)], ids=["plain", "weighted"])
def test_minibatch_estimator_is_unbiased(weights):
    """The mean over all batches of four rows is the full value and the full gradient."""
    batches = np.array(list(itertools.combinations(range(N), 4)))
    with double():
        target = MODEL.given(X, Y, weights=weights).flat()
        estimates, gradients, full, full_gradient = over_all_batches(target, U, batches)
        assert np.std(estimates) > 0.1
        np.testing.assert_allclose(np.mean(estimates), full, rtol=1e-12)
        np.testing.assert_allclose(np.mean(gradients, axis=0), full_gradient, rtol=1e-12)


def test_integer_weights_are_repeated_rows():
    counts = np.array([1, 0, 2, 3, 1, 1])
    repeated = MODEL.given(np.repeat(X, counts, axis=0), np.repeat(Y, counts))
    np.testing.assert_allclose(value(MODEL.given(X, Y, weights=counts)), value(repeated), rtol=1e-12)


def test_one_distribution_for_all_rows():
    """() broadcasts over y: one factor a row still."""
    target = Model(PRIOR, lambda params, x: dist.Normal(params["w"][0], params["sigma"])).given(y=Y)
    assert target.num_terms == N
    np.testing.assert_allclose(terms(target), stats.norm.logpdf(Y, U[0], np.exp(U[2])), rtol=1e-12)
    target.check_minibatch(2)


def test_trailing_dimensions_fold():
    y = rng.normal(size=(N, 3))
    target = Model(PRIOR, lambda params, x: dist.Normal((x @ params["w"])[:, None], params["sigma"])).given(X, y)
    assert (target.size, target.num_terms) == (N, N)
    expected = stats.norm.logpdf(y, (X @ U[:2])[:, None], np.exp(U[2])).sum(axis=1)
    np.testing.assert_allclose(terms(target), expected, rtol=1e-12)


def test_event_dimensions():
    y = rng.normal(size=(N, 3))

    def likelihood(params, x):
        return dist.MultivariateNormal((x @ params["w"])[:, None] * jnp.ones(3), jnp.eye(3) * params["sigma"] ** 2)

    target = Model(PRIOR, likelihood).given(X, y)
    assert target.num_terms == N
    expected = stats.norm.logpdf(y, (X @ U[:2])[:, None], np.exp(U[2])).sum(axis=1)
    np.testing.assert_allclose(terms(target), expected, rtol=1e-12)


def test_weights_are_of_rows_and_a_joint_likelihood_has_none():
    joint = Model(PRIOR, lambda p, x: line(p, x).to_event(1))
    with pytest.raises(CredoError, match="one density of all 6 rows together, and weights= counts rows"):
        joint.given(X, Y, weights=np.ones(N))
    assert joint.given(X, Y).num_terms == 1


def test_joint_likelihood_has_no_minibatches():
    def likelihood(params, x):
        return dist.MultivariateNormal(x @ params["w"], jnp.eye(len(x)) * params["sigma"] ** 2)

    target = Model(PRIOR, likelihood).given(X, Y)
    assert (target.size, target.num_terms) == (N, 1)
    np.testing.assert_allclose(value(target), value(MODEL.given(X, Y)), rtol=1e-12)
    assert terms(target).shape == (1,)
    with pytest.raises(CredoError, match="The likelihood is joint"):
        target.check_minibatch(2)
    with pytest.raises(CredoError, match="The likelihood is joint"):
        terms(target, batch=np.array([0, 1]))


def both(params, x):
    return {"cost": dist.Normal(x @ params["w"], params["sigma"]), "count": dist.Poisson(jnp.exp(x @ params["w"]))}


def test_several_outcomes_add_up_row_by_row():
    y = {"cost": Y, "count": np.arange(N)}
    target = Model(PRIOR, both).given(X, y)
    assert target.num_terms == N
    expected = stats.norm.logpdf(Y, X @ U[:2], np.exp(U[2])) + stats.poisson.logpmf(y["count"], np.exp(X @ U[:2]))
    np.testing.assert_allclose(terms(target), expected, rtol=1e-12)
    target.check_minibatch(3)
    with pytest.raises(CredoError, match="no distribution for outcome 'price'"):
        Model(PRIOR, both).given(X, {"price": Y})


def test_outcomes_are_drawn_independently():
    def likelihood(params, x):
        return {"a": dist.Normal(0.0 * x, 1.0), "b": dist.Normal(0.0 * x, 1.0)}

    drawn = Model({"m": dist.Normal(0.0, 1.0)}, likelihood).sample_prior_predictive(0, np.zeros(5), 200)
    assert drawn["a"].shape == (200, 5)
    assert abs(np.corrcoef(drawn["a"].ravel(), drawn["b"].ravel())[0, 1]) < 4.5 / np.sqrt(1_000)


@pytest.mark.parametrize(
    ("likelihood", "num_rows", "sentence"),
    [
        (line, 0, "A minibatch of 0 rows was asked of 6"),
        (line, 7, "A minibatch of 7 rows was asked of 6"),
        (lambda p, x: dist.Normal(p["row"], 1.0), 2, "cannot be evaluated on 2 of the 6 rows"),
        (lambda p, x: dist.Normal((x - x.mean(axis=0)) @ p["w"], 1.0), 2, "changes with the rows beside it"),
    ],
)
def test_minibatches_that_are_refused(likelihood, num_rows, sentence):
    target = Model({**PRIOR, "row": dist.Normal(0.0, 1.0).expand([N])}, likelihood).given(X, Y)
    with pytest.raises(CredoError, match=sentence):
        target.check_minibatch(num_rows)


def test_no_data_no_minibatch():
    with pytest.raises(CredoError, match="no data to take minibatches of"):
        MODEL.given().check_minibatch(1)
    with pytest.raises(CredoError, match="no likelihood apart from its prior"):
        terms(MODEL.given())


def test_a_likelihood_may_be_a_pytree():
    """An Equinox module: its arrays are arguments of compiled code, so another module traces nothing."""
    count = []

    class Scorer(eqx.Module):
        offset: np.ndarray

        def __call__(self, params, x):
            count.append(None)
            return dist.Normal(x @ params["w"] + self.offset, 1.0)

    values = []
    for offset in (np.zeros(()), np.ones(())):
        target = Model(PRIOR, Scorer(offset)).given(X, Y)
        before = len(count)
        values.append(value(target))
        traced = len(count) - before
    assert traced == 0
    assert values[0] != values[1]


def test_a_second_target_compiles_nothing():
    """Same likelihood, prior structure and shapes; other data, weights and hyperparameters."""
    count = []

    def likelihood(params, x):
        count.append(None)
        return line(params, x)

    for scale in (1.0, 2.0, 3.0):
        prior = {**PRIOR, "w": dist.Normal(0.0, scale).expand([2])}
        target = Model(prior, likelihood).given(scale * X, Y + scale, weights=np.full(N, scale))
        before = len(count)
        value(target)
    assert len(count) == before


def test_x_may_be_a_tree():
    tree = {"a": X[:, 0], "more": [X[:, 1]]}
    target = Model(PRIOR, lambda p, x: dist.Normal(x["a"] * p["w"][0] + x["more"][0] * p["w"][1], p["sigma"])).given(
        tree, Y
    )
    np.testing.assert_allclose(value(target), value(MODEL.given(X, Y)), rtol=1e-12)
    np.testing.assert_allclose(terms(target, batch=np.array([3])), terms(MODEL.given(X, Y))[3:4], rtol=1e-12)


def test_prediction_at_parameters():
    target = MODEL.given(X, Y)
    with double():
        params = target.flat().constrain(U)
        distribution = target.likelihood_distribution(params, X[:2])
        np.testing.assert_allclose(distribution.loc, X[:2] @ U[:2])
        np.testing.assert_allclose(target.outputs(params, X)[:, 0], X @ U[:2])
        with pytest.raises(CredoError, match="no likelihood to predict with"):
            Model(PRIOR, None).given().likelihood_distribution(params, X)
