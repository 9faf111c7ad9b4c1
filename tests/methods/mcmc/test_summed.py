"""Modes of a mixture whose labels Gibbs draws, which show on the density without the labels alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.methods.mcmc.conditional import Block
from credo.methods.mcmc.enumerated import Enumerating
from credo.methods.mcmc.summed import SummedOut
from credo.precision import double

Y = np.concatenate([np.random.default_rng(0).normal(-2, 1, 40), np.random.default_rng(1).normal(2, 1, 60)])
PRIOR = {"share": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([-1.0, 1.0]), 2.0), "sd": dist.HalfNormal(1.0)}
LABELLED = credo.Model(
    {**PRIOR, "label": lambda share: dist.Bernoulli(share).expand([100])},
    lambda p, x: dist.Normal(p["mean"][p["label"]], p["sd"]),
).given(y=Y)
SUMMED = credo.Model(
    PRIOR,
    lambda p, x: dist.MixtureSameFamily(
        dist.Categorical(jnp.stack([1 - p["share"], p["share"]])), dist.Normal(p["mean"], p["sd"])
    ),
).given(y=Y)


def without_labels(target, names=("label",)):
    block = Block.of(target.structure, names)
    return SummedOut.of(target, [(Enumerating(block, is_apart=True), np.arange(2))])


def test_the_density_is_that_of_the_model_without_labels():
    summed, expected = without_labels(LABELLED), SUMMED.flat()
    assert summed is not None
    with double():
        for u in np.random.default_rng(2).normal(size=(3, 4)):
            found, wanted = (jax.value_and_grad(each.log_density)(u) for each in (summed, expected))
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-9)


@pytest.mark.parametrize("law", [dist.Poisson, dist.Exponential])
def test_impossible_labels_leave_derivatives_that_are_numbers(law):
    """The first label means a rate of zero, at which a count or a time above zero is impossible: log λ has no slope."""
    probs, rates, y = np.array([0.2, 0.5, 0.3]), np.array([0.0, 1.0, 50.0]), np.array([1, 2, 60])
    prior = {"rate": dist.LogNormal(0.0, 1.0), "label": dist.Categorical(probs).expand([3])}
    target = credo.Model(prior, lambda p, x: law(jnp.asarray(rates)[p["label"]] * p["rate"])).given(y=y)
    summed = SummedOut.of(target, [(Enumerating(Block.of(target.structure, ("label",)), True), np.arange(3))])
    assert summed is not None

    def by_hand(u):
        of_labels = jnp.log(probs[1:, None]) + law(rates[1:, None] * jnp.exp(u[0])).log_prob(y)
        return dist.Normal(0.0, 1.0).log_prob(u[0]) + jax.nn.logsumexp(of_labels, axis=0).sum()

    with double():
        u = np.array([0.3])
        found, expected = (jax.value_and_grad(each)(u) for each in (summed.log_density, by_hand))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)
        np.testing.assert_allclose(jax.hessian(summed.log_density)(u), jax.hessian(by_hand)(u), rtol=1e-8)


def test_the_likeliest_labels_are_those_of_the_nearer_component():
    summed = without_labels(LABELLED)
    assert summed is not None
    whole = summed.likeliest(jnp.array([0.0, -2.0, 2.0, 0.0]))
    params = LABELLED.flat().constrain(whole)
    np.testing.assert_allclose(params["mean"], [-2.0, 2.0])
    assert np.array_equal(np.asarray(params["label"]) == 1, Y > 0)


def test_labels_in_two_blocks_are_not_summed():
    model = credo.Model(
        {"share": dist.Beta(2.0, 2.0), "a": dist.Bernoulli(0.5).expand([2]), "b": dist.Bernoulli(0.5).expand([2])},
        lambda p, x: dist.Normal(p["a"] - p["b"], p["share"]),
    )
    assert without_labels(model.given(y=np.zeros(2)), ("a",)) is None


@pytest.mark.parametrize(("at", "sd", "status"), [(0.0, 2.0, "doubtful"), (8.0, 0.3, "pass")])
def test_labels_that_all_chains_drew_one_way_pass_only_where_another_has_no_mass(at, sd, status):
    """A tenth of the first posterior has the components exchanged; the prior of the second allows them one way."""
    prior = PRIOR | {"mean": dist.Normal(at + jnp.array([-1.0, 1.0]), sd)}
    prior["label"] = lambda share: dist.Bernoulli(share).expand([100])
    target = credo.Model(prior, LABELLED.model.likelihood).given(y=Y + at)
    blocks = {"label": credo.Enumerated(), "share": credo.Conjugate(), "mean": credo.Conjugate(), "sd": credo.Slice()}
    start = {"share": 0.6, "mean": np.array([-2.0, 2.0]) + at, "sd": 1.0, "label": (Y > 0).astype(int)}
    posterior = credo.fit(target, credo.Gibbs(blocks), key=0, start=start, progress=False)
    assert posterior.draws["mean"][..., 0].max() < posterior.draws["mean"][..., 1].min()
    assert posterior.verdict.status == status
    assert (posterior.verdict.figures["copy_weight"] > 10) == (status == "doubtful")


def test_the_mode_that_no_chain_met_is_a_start_with_labels():
    """Outcomes are all about the mean, or all about 40 less: labels that go one way hold it there, and it them."""
    model = credo.Model(
        {"mean": dist.Normal(0.0, 50.0), "label": dist.Bernoulli(0.4).expand([3])},
        lambda p, x: dist.Normal(p["mean"] - 40.0 * p["label"], 1.0),
    )
    target = model.given(y=np.array([0.1, -0.2, 0.1]))
    method = credo.Gibbs({"label": credo.Enumerated(), "mean": credo.Conjugate()})
    start = {"mean": 0.0, "label": np.zeros(3, int)}
    posterior = credo.fit(target, method, key=0, start=start, progress=False)
    assert posterior.verdict.status == "failed"
    odds = (0.4 / 0.6) ** 3 * np.exp(-0.5 * 40**2 / (50**2 + 1 / 3))  # of the means about 40 and 0
    assert posterior.verdict.figures["mode_share"] == pytest.approx(odds / (1 + odds), rel=0.02)
    elsewhere = posterior.info["elsewhere"]
    np.testing.assert_allclose(elsewhere["mean"], 40.0, atol=0.1)
    np.testing.assert_array_equal(elsewhere["label"], 1)
    again = credo.fit(target, method, key=0, start=elsewhere, progress=False)
    assert again.draws["mean"].min() > 30
