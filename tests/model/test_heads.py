"""Observation models: splitting and joining lose nothing, and the Fisher information is the expected curvature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from credo.model.heads import HEADS, head_of
from credo.precision import double

NUM_ROWS = 3
Z = np.array([[0.3, -0.4, 0.1], [-1.2, 0.6, 0.5], [0.8, 0.1, -0.7]])
# ∫ g(y) dy over the line by y = sinh t: doubly exponential decay, so heavy tails are no trouble
T = np.linspace(-25.0, 25.0, 4001)
LINE = (np.sinh(T), np.cosh(T) * (T[1] - T[0]))
# … and over the positive half-line by y = exp t
HALF = (np.exp(T), np.exp(T) * (T[1] - T[0]))


def counts(number):
    return (np.arange(number + 1), np.ones(number + 1))


# kind: the distribution of three rows from outputs, and (outcomes, their measure)
CASES = {
    dist.Normal: (lambda: dist.Normal(Z[:, 0], np.exp(Z[:, 1])), LINE),
    dist.StudentT: (lambda: dist.StudentT(5.0, Z[:, 0], np.exp(Z[:, 1])), LINE),
    dist.BernoulliLogits: (lambda: dist.Bernoulli(logits=Z[:, 0]), counts(1)),
    dist.BernoulliProbs: (lambda: dist.Bernoulli(probs=np.array([0.2, 0.5, 0.7])), counts(1)),
    dist.BinomialLogits: (lambda: dist.Binomial(4, logits=Z[:, 0]), counts(4)),
    dist.BinomialProbs: (lambda: dist.Binomial(4, probs=np.array([0.2, 0.5, 0.7])), counts(4)),
    dist.CategoricalLogits: (lambda: dist.Categorical(logits=Z), counts(2)),
    dist.CategoricalProbs: (lambda: dist.Categorical(probs=np.array([[0.2, 0.3, 0.5]] * 3)), counts(2)),
    dist.Poisson: (lambda: dist.Poisson(np.exp(Z[:, 0])), counts(60)),
    dist.Exponential: (lambda: dist.Exponential(np.exp(Z[:, 0])), HALF),
}


@functools.cache
def evaluated(kind):
    make, (outcomes, measure) = CASES[kind]
    with double():
        distribution = make()
        head = head_of(distribution)
        assert head is not None

        @jax.jit
        def answer(distribution, outcomes):
            z = head.split(distribution)

            def log_prob(z, y):  # one row: z (K,), y ()
                rows = head.join(jnp.broadcast_to(z, (NUM_ROWS, z.size)), distribution).log_prob(y)
                return rows[0]

            over_outcomes = jax.vmap(jax.hessian(log_prob), (None, 0))
            return {
                "before": jax.vmap(distribution.log_prob)(outcomes[:, None] * jnp.ones(NUM_ROWS, outcomes.dtype)),
                "after": jax.vmap(head.join(z, distribution).log_prob)(
                    outcomes[:, None] * jnp.ones(NUM_ROWS, outcomes.dtype)
                ),
                "curvature": -jax.vmap(over_outcomes, (0, None), 1)(z, outcomes),
                "fisher": head.fisher(z, distribution),
            }

        return jax.tree.map(np.asarray, answer(distribution, outcomes)), measure


def test_every_head_is_tested():
    assert set(CASES) == set(HEADS)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_join_undoes_split(kind):
    answer, _ = evaluated(kind)
    inside = np.isfinite(answer["before"])
    np.testing.assert_allclose(answer["after"][inside], answer["before"][inside], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_fisher_is_the_expected_curvature(kind):
    """E[−∂² log p(y | z)] by summing or integrating over all outcomes; positive semi-definite."""
    answer, measure = evaluated(kind)
    probability = np.where(np.isfinite(answer["before"]), np.exp(answer["before"]), 0.0) * measure[:, None]
    np.testing.assert_allclose(probability.sum(axis=0), 1.0, rtol=1e-8)
    curvature = np.where(probability[..., None, None] > 0, answer["curvature"], 0.0)
    expected = np.einsum("yn,ynij->nij", probability, curvature)
    np.testing.assert_allclose(answer["fisher"], expected, rtol=1e-7, atol=1e-9)
    assert np.all(np.linalg.eigvalsh(answer["fisher"]) > -1e-12)


@pytest.mark.parametrize("kind", [dist.Normal, dist.StudentT, dist.BinomialLogits, dist.Poisson])
def test_arguments_shared_by_rows(kind):
    """An expanded distribution has the head of its base."""
    shared = {
        dist.Normal: dist.Normal(0.3, 2.0),
        dist.StudentT: dist.StudentT(5.0, 0.3, 2.0),
        dist.BinomialLogits: dist.Binomial(4, logits=0.3),
        dist.Poisson: dist.Poisson(2.0),
    }[kind]
    with double():
        expanded = shared.expand([NUM_ROWS])
        head = head_of(expanded)
        assert head is head_of(shared.expand([NUM_ROWS]))
        z = head.split(expanded)
        assert z.shape[0] == NUM_ROWS
        y = np.array([0, 1, 2])
        np.testing.assert_allclose(head.join(z, expanded).log_prob(y), expanded.log_prob(y), rtol=1e-6)
        fisher = head.fisher(z, expanded)
        assert fisher.shape == (NUM_ROWS, z.shape[1], z.shape[1])


def test_no_head():
    assert head_of(dist.Gamma(np.ones(3), 1.0)) is None
    assert head_of(dist.Normal(0.0, 1.0)) is None
    assert head_of(dist.Normal(np.zeros((3, 2, 2)), 1.0)) is None
    assert head_of(dist.Categorical(logits=np.zeros((3, 2, 4)))) is None
    assert head_of(dist.MultivariateNormal(np.zeros((3, 2)), np.eye(2))) is None


@pytest.mark.parametrize("is_event", [False, True], ids=["batch", "event"])
def test_columns_have_the_head_of_each_of_them(is_event):
    scale = np.exp(np.array([[0.1, -0.2], [0.3, 0.0], [-0.5, 0.2]]))
    with double():
        alone = [dist.StudentT(5.0, Z[:, j], scale[:, j]) for j in range(2)]
        together = dist.StudentT(5.0, Z[:, :2], scale)
        together = together.to_event(1) if is_event else together
        head, one = head_of(together), head_of(alone[0])
        assert head is not None
        assert one is not None
        assert (head.name, head.column) == ("columns of student_t", "student_t")
        z = head.split(together)
        np.testing.assert_allclose(z, np.concatenate([one.split(d) for d in alone], axis=1))
        blocks = np.zeros((3, 4, 4))
        for j, d in enumerate(alone):
            blocks[:, 2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = one.fisher(one.split(d), d)
        np.testing.assert_allclose(head.fisher(z, together), blocks)
        again = head.join(z, together)
        assert (again.batch_shape, again.event_shape) == (together.batch_shape, together.event_shape)
        np.testing.assert_allclose(again.log_prob(Z[:, :2]), together.log_prob(Z[:, :2]), rtol=1e-12)
