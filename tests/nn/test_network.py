"""Networks as models: densities, heads, priors of weights, and requests that cannot be answered."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import integrate, stats

import credo
from credo.model.data import Rows
from credo.nn import (
    BayesianNetwork,
    Bernoulli,
    Categorical,
    Custom,
    Gaussian,
    HeteroscedasticGaussian,
    HorseshoeLike,
    Isotropic,
    LaplacePrior,
    PerLayer,
    Poisson,
    ScaleMixture,
    StudentT,
)
from credo.nn.laws import CauchySlash, TwoNormals
from credo.precision import double

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 2))
Y = RANDOM.normal(size=12)


def weights(num_outputs: int = 1, dtype=np.float32):
    random = np.random.default_rng(1)
    return {
        "in": {"w": random.normal(size=(2, 3)).astype(dtype), "b": np.zeros(3, dtype)},
        "out": {"w": random.normal(size=(3, num_outputs)).astype(dtype)},
    }


def apply(params, x):
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]


def by_hand(params):
    return np.tanh(X @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]


def log_density(target, params) -> float:
    with double():
        return float(target.log_density(target.unconstrain(params)))


def network(head=None, num_outputs: int = 1, prior=None, **options) -> BayesianNetwork:
    return BayesianNetwork(apply, weights(num_outputs), head=Gaussian(0.5) if head is None else head, prior=prior)


# the density ------------------------------------------------------------------------------------------------------


def test_the_density_is_prior_times_likelihood():
    params = weights(dtype=np.float64)
    found = log_density(network(prior=Isotropic(4.0)).given(X, Y), {"weights": params})
    prior = sum(stats.norm(0, 0.5).logpdf(leaf).sum() for leaf in (*params["in"].values(), params["out"]["w"]))
    assert found == pytest.approx(prior + stats.norm(by_hand(params)[:, 0], 0.5).logpdf(Y).sum(), rel=1e-12)


@pytest.mark.parametrize("head", [Categorical(), lambda z: dist.Categorical(logits=z)], ids=["head", "function"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_outputs_of_less_precision_lose_none_after_them(head, dtype):
    """As of a module with a dtype of its own: over many rows sums in half precision are off by whole nats."""

    def apply(params, x):
        return ((x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]).astype(dtype)

    random = np.random.default_rng(3)
    x, y = random.normal(size=(3_000, 2)), random.integers(0, 3, 3_000)
    target = BayesianNetwork(apply, weights(3), head=head).given(x, y)
    with double():
        position = target.unconstrain(target.model.start)
        z = np.asarray(apply(jax.tree.map(jnp.asarray, weights(3, np.float64)), x), np.float64)
        expected = np.sum(z[np.arange(3_000), y] - np.log(np.sum(np.exp(z), axis=1)))
        found = target.log_density(position) - target.log_prior(position)
        np.testing.assert_allclose(found, expected, atol=1e-3 if dtype == jnp.float32 else 0.3)
        assert found.dtype == jnp.float64
    for method in (credo.MAP(num_steps=20), credo.Laplace(num_steps=20), credo.SGLD(num_draws=5, num_warmup=5)):
        assert np.all(np.isfinite(credo.fit(target, method, progress=False).predict(x[:3]).probs))


def test_unknown_noise_and_precision_are_parameters():
    model = network(Gaussian(dist.HalfNormal(2.0)), prior=Isotropic(dist.Gamma(2.0, 3.0)))
    params = weights(dtype=np.float64)
    given = {"noise": 0.7, "precision": 4.0, "weights": params}
    target = model.given(X, Y)
    prior = sum(stats.norm(0, 0.5).logpdf(leaf).sum() for leaf in (*params["in"].values(), params["out"]["w"]))
    prior += stats.halfnorm(scale=2.0).logpdf(0.7) + stats.gamma(2.0, scale=1 / 3).logpdf(4.0)
    expected = prior + stats.norm(by_hand(params)[:, 0], 0.7).logpdf(Y).sum() + np.log(0.7) + np.log(4.0)  # Jacobians
    assert log_density(target, given) == pytest.approx(expected, rel=1e-12)


def test_fits_start_at_the_weights_and_where_other_coordinates_are_zero():
    positive = dist.Gamma(2.0, 1.0)
    for head in (Gaussian(), Custom(lambda z, noise: dist.Normal(z[:, 0], noise), {"noise": positive})):
        start = network(head, prior=PerLayer(positive)).start
        jax.tree.map(np.testing.assert_array_equal, start["weights"], weights())
        assert start["noise"] == 1.0
        assert start["precision"] == {"in": 1.0, "out": 1.0}


def test_one_precision_a_layer():
    params = {"weights": weights(dtype=np.float64)}
    target = network(prior=PerLayer({"in": 1.0, "out": 16.0})).given(X, Y)
    w = params["weights"]
    prior = (
        sum(stats.norm.logpdf(leaf).sum() for leaf in w["in"].values())
        + stats.norm(0, 0.25).logpdf(w["out"]["w"]).sum()
    )
    likelihood = stats.norm(by_hand(w)[:, 0], 0.5).logpdf(Y).sum()
    assert log_density(target, params) == pytest.approx(prior + likelihood, rel=1e-12)
    hierarchical = network(prior=PerLayer(dist.Gamma(2.0, 1.0)))
    assert {leaf.name for leaf in hierarchical.structure.leaves} >= {"precision.in", "precision.out", "weights.in.w"}
    by_leaf = network(prior=PerLayer(dist.Gamma(2.0, 1.0), by="leaf"))
    assert "precision.in.w" in {leaf.name for leaf in by_leaf.structure.leaves}
    deep = {"block": {"a": {"w": np.ones(2)}, "b": {"w": np.ones(2)}}, "out": {"w": np.ones(2)}}
    found = dict(PerLayer(dist.Gamma(2.0, 1.0)).of(deep))["precision"]
    assert list(found) == ["block", "out"]


@pytest.mark.parametrize("distribution", [CauchySlash(0.7), TwoNormals(0.3, 1.5, 0.05)], ids=["slash", "two"])
def test_the_laws_of_weights_are_normalised_and_sampled(distribution):
    with double():

        def density(w):
            return float(jnp.exp(distribution.log_prob(w)))

        parts = [
            integrate.quad(density, a, b, limit=200)[0] for a, b in ((0, 1e-3), (1e-3, 0.1), (0.1, 3), (3, np.inf))
        ]
        assert 2 * sum(parts) == pytest.approx(1.0, abs=1e-6)
        draws = np.abs(distribution.sample(jax.random.key(0), (20_000,)))
    for bound, share in ((0.1, 2 * sum(parts[:2])), (3.0, 2 * sum(parts[:3]))):
        error = np.sqrt(share * (1 - share) / 20_000)
        assert np.mean(draws < bound) == pytest.approx(share, abs=4.5 * error + 1e-12)


@pytest.mark.parametrize(
    ("prior", "density"),
    [
        (LaplacePrior(0.5), stats.laplace(0, 0.5).pdf),
        (ScaleMixture(0.8, (2.0, 0.1)), lambda w: 0.8 * stats.norm(0, 2.0).pdf(w) + 0.2 * stats.norm(0, 0.1).pdf(w)),
        (HorseshoeLike(0.3), lambda w: np.log1p((0.3 / w) ** 2) / (2 * np.pi * 0.3)),
    ],
    ids=["laplace", "mixture", "horseshoe"],
)
def test_weights_have_the_law_that_was_asked_for(prior, density):
    params = jax.tree.map(lambda leaf: leaf + 0.1, weights(dtype=np.float64))  # a horseshoe is infinite at zero
    found = log_density(network(prior=prior).given(X, Y), {"weights": params})
    of_weights = sum(np.log(density(leaf)).sum() for leaf in jax.tree.leaves(params))
    likelihood = stats.norm(by_hand(params)[:, 0], 0.5).logpdf(Y).sum()
    assert found == pytest.approx(of_weights + likelihood, rel=1e-9)


def test_a_horseshoe_begins_beside_its_peak():
    """The biases of new networks are zero, where its density is infinite."""
    params = jax.tree.map(lambda leaf: np.zeros_like(leaf), weights(dtype=np.float64))
    params["out"]["w"][0] = 0.7
    model = BayesianNetwork(apply, params, head=Gaussian(0.5), prior=HorseshoeLike(0.3))
    start = model.start["weights"]
    np.testing.assert_array_equal(start["out"]["w"][0], 0.7)
    others = np.concatenate([np.ravel(start["in"]["w"]), np.ravel(start["out"]["w"][1:])])
    np.testing.assert_allclose(np.abs(others), 0.003)
    assert others.min() < 0 < others.max()
    posterior = credo.fit(model.given(X, Y), credo.HMC(num_warmup=20, num_draws=10), progress=False)
    assert np.isfinite(posterior.mean()["weights"]["out"]["w"]).all()
    with pytest.raises(credo.CredoError, match=r"is infinitely high at .*start beside that value \(start=\)"):
        credo.fit(model.given(X, Y), credo.HMC(), start={"weights": params}, progress=False)


@pytest.mark.parametrize("prior", [LaplacePrior(0.5), ScaleMixture(), HorseshoeLike(0.3), Isotropic(dist.Gamma(2, 2))])
def test_every_prior_makes_a_target_with_gradients(prior):
    target = network(prior=prior).given(X, Y).flat()
    with double():
        gradient = jax.grad(target.log_density)(jnp.full(target.dim, 0.3))
    assert np.all(np.isfinite(gradient))
    assert np.all(np.isfinite(list(network(prior=prior).sample_prior(0, 3)["weights.out.w"].ravel())))


def test_a_precision_may_be_an_array_of_one_number():
    params = {"weights": weights(dtype=np.float64)}
    expected = log_density(network(prior=Isotropic(4.0)).given(X, Y), params)
    for one in (np.array(4.0), jnp.float32(4.0)):
        for prior in (Isotropic(one), PerLayer({"in": one, "out": 4.0})):
            assert log_density(network(prior=prior).given(X, Y), params) == expected


# heads --------------------------------------------------------------------------------------------------------------

COUNTS = RANDOM.poisson(2.0, 12)
HEADS = {
    "categorical": (Categorical(), 3, COUNTS % 3, lambda z, y: np.log(softmax(z))[np.arange(12), y]),
    "bernoulli": (Bernoulli(), 1, COUNTS % 2, lambda z, y: stats.bernoulli(1 / (1 + np.exp(-z[:, 0]))).logpmf(y)),
    "poisson": (Poisson(), 1, COUNTS, lambda z, y: stats.poisson(np.exp(z[:, 0])).logpmf(y)),
    "student": (StudentT(3.0, 0.4), 1, Y, lambda z, y: stats.t(3.0, z[:, 0], 0.4).logpdf(y)),
    "two outcomes": (Gaussian(0.5), 2, np.stack([Y, -Y], axis=1), lambda z, y: stats.norm(z, 0.5).logpdf(y).sum(1)),
    "input-dependent noise": (
        HeteroscedasticGaussian(),
        2,
        Y,
        lambda z, y: stats.norm(z[:, 0], 1e-6 + np.log1p(np.exp(z[:, 1]))).logpdf(y),
    ),
    "own": (Custom(lambda z: dist.Exponential(jnp.exp(z[:, 0]))), 1, Y**2, lambda z, y: z[:, 0] - np.exp(z[:, 0]) * y),
}


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", HEADS)
def test_heads_score_each_row(name):
    head, num_outputs, y, expected = HEADS[name]
    target = network(head, num_outputs).given(X, y)
    params = weights(num_outputs, np.float64)
    with double():
        rows = np.asarray(target.log_likelihood(target.unconstrain({"weights": params})))
    np.testing.assert_allclose(rows, expected(by_hand(params), y), rtol=1e-9)


def test_two_networks_give_mean_and_noise():
    params = {"mean": weights(), "noise": weights()}
    model = BayesianNetwork(
        lambda p, x: (apply(p["mean"], x), apply(p["noise"], x)), params, head=HeteroscedasticGaussian()
    )
    assert model.given(X, Y).dim == 24


def test_noise_is_one_number_or_one_a_column():
    y, sd = np.stack([Y, -Y], axis=1), np.array([0.3, 0.9])
    target = network(Gaussian(dist.HalfNormal(1.0).expand([2])), 2).given(X, y)
    params = weights(2, np.float64)
    with double():
        rows = np.asarray(target.log_likelihood(target.unconstrain({"noise": sd, "weights": params})))
    np.testing.assert_allclose(rows, stats.norm(by_hand(params), sd).logpdf(y).sum(1), rtol=1e-9)
    for shape, outcomes, remedy in (([12], Y, r"\(\)\."), ([12, 1], y, r"\(\), or \(2,\) for one a column")):
        with pytest.raises(credo.CredoError, match="give one of shape " + remedy):
            network(Gaussian(dist.HalfNormal(1.0).expand(shape)), outcomes[0].size).given(X, outcomes)


def test_one_scale_a_row_serves_its_outcomes():
    """As many rows as outcomes, so that scales by row and scales by outcome have one shape."""
    x, y = X[:2], np.stack([Y, -Y], axis=1)[:2]

    def outputs(columns):
        return lambda p, x: (x * p["mean"], x[:, :1] + p["noise"][:columns])

    params = {"mean": np.array([0.5, -1.0]), "noise": np.array([0.3, 0.1])}
    target = BayesianNetwork(outputs(1), params, head=HeteroscedasticGaussian()).given(x, y)
    with double():
        rows = np.asarray(target.log_likelihood(target.unconstrain({"weights": params})))
    sd = 1e-6 + np.log1p(np.exp(x[:, :1] + 0.3))
    np.testing.assert_allclose(rows, stats.norm(x * params["mean"], sd).logpdf(y).sum(1), rtol=1e-9)
    by_row = BayesianNetwork(lambda p, x: (x * p["mean"], x[:, 0]), params, head=HeteroscedasticGaussian())
    with pytest.raises(credo.CredoError, match=r"means \(2, 2\) and raw scales \(2,\)"):
        by_row.given(x, y)


# fits -----------------------------------------------------------------------------------------------------------------


def test_a_linear_network_has_the_posterior_of_linear_regression():
    model = BayesianNetwork(lambda w, x: x @ w, np.zeros(2), head=Gaussian(0.5), prior=Isotropic(2.0))
    posterior = credo.fit(model.given(X, Y), credo.Laplace(), progress=False)
    precision = X.T @ X / 0.25 + 2.0 * np.eye(2)
    np.testing.assert_allclose(posterior.mean()["weights"], np.linalg.solve(precision, X.T @ Y / 0.25), rtol=1e-8)
    np.testing.assert_allclose(posterior.sd()["weights"], np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-8)
    predictive = posterior.predict(X, rule=credo.Linearised())
    spread = np.einsum("ij,jk,ik->i", X, np.linalg.inv(precision), X)
    np.testing.assert_allclose(predictive.epistemic, spread, rtol=1e-8)


def test_fits_start_at_the_given_weights():
    model = network()
    start = credo.fit(model.given(X, Y), credo.Laplace(num_steps=0), progress=False)
    np.testing.assert_allclose(
        start.kind.mean,  # type: ignore[attr-defined]
        model.given(X, Y).flat().unconstrain({"weights": weights()}),
        rtol=1e-6,
    )


def test_a_number_of_pythons_is_a_weight_of_any_precision():
    params = {"w": np.array([0.5, -0.5], np.float32), "b": 1.0}
    target = BayesianNetwork(lambda p, x: (x @ p["w"] + p["b"])[:, None], params, head=Gaussian(0.5)).given(X, Y)
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    design = np.column_stack([np.ones(len(X)), X])
    mean = np.linalg.solve(design.T @ design / 0.25 + np.eye(3), design.T @ Y / 0.25)
    found = posterior.mean()["weights"]
    np.testing.assert_allclose(np.r_[found["b"], found["w"]], mean, rtol=1e-5)
    np.testing.assert_allclose(posterior.predict(X).mean, design @ mean, rtol=1e-5)


# requests that cannot be answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"w": np.zeros((2, 1)), "count": np.array(3)}, "'count' is int64"),
        ({"w": np.zeros((2, 1)), "f": jnp.tanh}, "'f' is PjitFunction"),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float16)}, "mixed precision"),
        ({"w": jax.random.key(0)}, "'w' is key<fry>, and only floating-point"),
        ({"w": jnp.zeros(2, jnp.bfloat16)}, "'w' is bfloat16: cast the weights to float32"),
        ({"w": np.array([1.0, np.nan])}, "'w' is not finite"),
        ({}, "no weights"),
        ({0: np.zeros((2, 1)), "b": np.zeros(1)}, "keys of a dict within params are of several types"),
    ],
    ids=["integer", "function", "mixed", "key", "bfloat16", "nan", "empty", "keys"],
)
def test_leaves_that_cannot_be_weights(params, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        BayesianNetwork(lambda p, x: x, params, head=Gaussian())


@pytest.mark.parametrize(
    ("head", "num_outputs", "y", "sentence"),
    [
        (Categorical(), 3, COUNTS % 3 + 1, "A label is 3, and the network has 3 classes, 0 to 2"),
        (Categorical(), 1, COUNTS % 2, "use Bernoulli"),
        (Categorical(), 3, (COUNTS % 3) + 0.5, "whole numbers"),
        (Categorical(), 3, COUNTS % 3 - 1, "A label is -1"),
        (Poisson(), 1, COUNTS + 0.5, "whole numbers"),
        (Bernoulli(), 1, COUNTS % 2 + 1, "Bernoulli\\(\\) knows 0 and 1"),
        (Gaussian(), 2, Y, "outputs of shape \\(12, 2\\) for outcomes of shape \\(12,\\)"),
        (Gaussian(), 1, Y[:, None], "give y\\[:, 0\\]"),
        (HeteroscedasticGaussian(), 3, Y, "even number of outputs"),
        (Poisson(), 1, COUNTS[:7], "differ in length"),
    ],
)
def test_outputs_and_outcomes_that_do_not_match(head, num_outputs, y, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        network(head, num_outputs).given(X, y)


def test_wrong_inputs_heads_and_priors():
    with pytest.raises(credo.CredoError, match="cannot be applied to inputs of shape"):
        network().given(X[:, :1], Y)
    with pytest.raises(credo.CredoError, match="with its brackets"):
        network(Gaussian)
    with pytest.raises(credo.CredoError, match="a rule for its weights"):
        network(prior=dist.Normal(0, 1))
    for noise in (-1.0, np.inf, "0.5", True, np.ones(2)):
        with pytest.raises(credo.CredoError, match="is a positive number, or its prior"):
            Gaussian(noise)
    for df in (0.0, dist.Gamma(2.0, 0.1)):
        with pytest.raises(
            credo.CredoError, match="df is a positive number; got .*Where it is unknown, write the head"
        ):
            StudentT(df)
    for prior in (LaplacePrior, HorseshoeLike, Isotropic):
        for wrong in (-1.0, np.inf, "1"):
            with pytest.raises(credo.CredoError, match="is a positive, finite number; got"):
                network(prior=prior(wrong))
    for wrong in (dist.Normal(0.0, 1.0), dist.Uniform(-1.0, 1.0), dist.TruncatedNormal(1.0, 1.0, low=-0.5)):
        for make in (Gaussian, lambda d: StudentT(scale=d), lambda d: network(prior=Isotropic(d))):
            with pytest.raises(credo.CredoError, match="is not on the positive numbers alone: give HalfNormal, Gamma"):
                make(wrong)
    for prior in (Isotropic, PerLayer):
        with pytest.raises(credo.CredoError, match=r"precision is of one number, and this one has shape \(3,\)"):
            network(prior=prior(dist.Gamma(2.0, 1.0).expand([3])))
    for wrong in (("a", (1.0, 0.05)), (0.5, (1.0, "a")), (1.0, (1.0, 0.05)), (0.5, (1.0, np.inf))):
        with pytest.raises(credo.CredoError, match="a weight inside \\(0, 1\\) and two positive scales"):
            ScaleMixture(*wrong)
    with pytest.raises(credo.CredoError, match="disagree about 'middle'"):
        network(prior=PerLayer({"in": 1.0, "out": 1.0, "middle": 2.0}))


@pytest.mark.parametrize("name", ["precision", "weights"])
def test_a_head_and_a_prior_with_one_name_are_two_parameters(name):
    """The prior's had taken the place of the head's, and was read as both."""
    head = Custom(lambda z, **own: dist.Normal(z, own[name]), {name: dist.HalfNormal(1.0)})
    with pytest.raises(credo.CredoError, match=f"called '{name}', and so has the prior of the weights"):
        network(head, prior=Isotropic(dist.LogNormal(0.0, 1.0)))


def test_what_people_bring_is_taken_or_named():
    """Lists, DataFrames, and classes that a table holds as floats."""
    params = {"w": np.zeros((2, 3))}
    network = BayesianNetwork(lambda p, x: x @ p["w"], params, head=Categorical())
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 2, 0])
    assert network.given(x.tolist(), y.tolist()).size == 4
    with pytest.raises(credo.CredoError, match=r"classes, which are whole numbers, and y holds floats.*astype\(int\)"):
        network.given(x, y.astype(float))
    with pytest.raises(credo.CredoError, match=r"differ in length \(x has 3, y has 4 rows\)"):
        network.given(x[:3], y)
    with pytest.raises(credo.CredoError, match="Batch 0: y has dtype <U1, not numbers: encode it, classes as whole"):
        network.given(credo.Loader([(x, np.array(["a", "b", "a", "b"]))]))
    with pytest.raises(credo.CredoError, match=r"dict of columns.*give x.to_numpy\(\)"):
        network.given(pd.DataFrame(x), y)
    posterior = credo.fit(network.given(x, y), credo.MAP(), progress=False)
    with pytest.raises(credo.CredoError, match=r"y holds float64, and classes are whole numbers.*astype\(int\)"):
        posterior.predict(x).log_prob(y.astype(float))


def test_statistics_that_are_not_frozen():
    """flax's ``apply(…, mutable=["batch_stats"])`` returns the new statistics beside the outputs."""

    def unfrozen(params, x):
        z = apply(params, x)
        return z, {"batch_stats": z.mean(0)}

    with pytest.raises(credo.CredoError, match="returns a state beside its outputs"):
        BayesianNetwork(unfrozen, weights(), head=Gaussian()).given(X, Y)


def test_errors_of_a_network_s_own_are_told():
    def failing(params, x):
        raise LookupError("no such layer")

    with pytest.raises(credo.CredoError, match="cannot be applied to inputs of shape.*no such layer"):
        BayesianNetwork(failing, weights(), head=Gaussian()).given(X, Y)


@pytest.mark.parametrize(
    ("apply", "remedy"),
    [
        (lambda params, x: np.tanh(x @ params["in"]["w"]) @ params["out"]["w"], "written with jax.numpy"),
        (lambda x, params: x @ params["in"]["w"], r"called as apply\(params, x\)"),
    ],
    ids=["NumPy", "arguments exchanged"],
)
def test_what_a_network_is_not_written_with_is_told(apply, remedy):
    with pytest.raises(credo.CredoError, match=remedy):
        BayesianNetwork(apply, weights(), head=Gaussian()).given(X, Y)


def test_outputs_and_outcomes_of_other_numbers_are_told_which():
    with pytest.raises(credo.CredoError, match="use a last layer of 3 outputs"):
        BayesianNetwork(apply, weights(), head=Gaussian()).given(X, np.zeros((len(X), 3)))
    with pytest.raises(credo.CredoError, match=r"give y\[:, 0\]"):
        BayesianNetwork(apply, weights(), head=Gaussian()).given(X, np.zeros((len(X), 1)))


def test_a_saved_posterior_knows_the_weights_it_was_fitted_to(tmp_path):
    posterior = credo.fit(network().given(X, Y), credo.Laplace(num_steps=0), progress=False)
    posterior.save(tmp_path / "fit")
    wider = {"in": {"w": np.zeros((2, 4)), "b": np.zeros(4)}, "out": {"w": np.zeros((4, 1))}}
    renamed = {"first": weights()["in"], "out": weights()["out"]}
    for params, sentence in ((wider, r"this model.s are weights.in.b\[4\]"), (renamed, "weights.(first|in)")):
        with pytest.raises(credo.CredoError, match=sentence):
            credo.load(tmp_path / "fit", BayesianNetwork(apply, params, head=Gaussian(0.5)))


@pytest.mark.filterwarnings("ignore:The density holds a float32 constant")
def test_rows_that_lean_on_each_other():
    """Batch statistics of training, which a prediction of fewer rows would not have."""

    def normalised(params, x):
        h = x @ params["in"]["w"]
        return jnp.tanh((h - h.mean(0)) / h.std(0)) @ params["out"]["w"]

    def by_product(params, x):
        return x @ (x.T @ x) @ params["in"]["w"] @ params["out"]["w"]

    def normalised_places(params, x):
        h = x @ params["in"]["w"]
        places = jnp.reshape(h, (-1, 1))
        return jnp.tanh(jnp.reshape(places - places.mean(0), h.shape)) @ params["out"]["w"]

    def differences(params, x):
        return jnp.tanh(x @ params["in"]["w"] - jnp.roll(x, 1, axis=0) @ params["in"]["w"]) @ params["out"]["w"]

    def reversed_rows(params, x):
        return jnp.tanh(x[::-1] @ params["in"]["w"]) @ params["out"]["w"]

    def summed(params, x):
        return jnp.cumsum(jnp.tanh(x @ params["in"]["w"]), axis=0) @ params["out"]["w"]

    def numbered(params, x):
        return jnp.tanh(x @ params["in"]["w"] + jnp.arange(len(x))[:, None] / 10) @ params["out"]["w"]

    def dropped(params, x):
        h = jnp.tanh(x @ params["in"]["w"])
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, h.shape), h, 0) @ params["out"]["w"]

    def recurrent(params, x):
        def step(h, row):
            h = jnp.tanh(row @ params["in"]["w"] + 0.5 * h)
            return h, h

        return jax.lax.scan(step, jnp.zeros(params["out"]["w"].shape[0]), x)[1] @ params["out"]["w"]

    moved = (normalised, by_product, normalised_places, differences, reversed_rows)
    for leaning in (*moved, summed, numbered, dropped, recurrent):
        with pytest.raises(credo.CredoError, match="a row changes with the rows beside it"):
            BayesianNetwork(leaning, weights(), head=Gaussian()).given(X, Y)

    def along_features(params, x):  # of as many as there are rows
        h = jnp.concatenate([x @ params["in"]["w"]] * 4, axis=1)
        return jnp.tanh((h - h.mean(1, keepdims=True)).T.T[:, :3]) @ params["out"]["w"]

    assert BayesianNetwork(along_features, weights(), head=Gaussian()).given(X, Y).size == 12

    adjacency = np.random.default_rng(3).integers(2, size=(12, 12)).astype(float)

    def graph(params, x):  # all of its rows at once
        return jnp.tanh(adjacency @ x @ params["in"]["w"]) @ params["out"]["w"]

    assert BayesianNetwork(graph, weights(), head=Gaussian()).given(X, Y).size == 12


@pytest.mark.parametrize(
    ("outputs", "head", "sentence"),
    [
        (lambda z: {"logits": z}, Categorical(), "a dict of 'logits'.*return one of them"),
        (lambda z: (z, z), Categorical(), "takes one array of outputs, and the network returns 2"),
        (lambda z: (z, 0.0), Poisson(), "takes one array of outputs, and the network returns 2"),
        (lambda z: (z, z, z), HeteroscedasticGaussian(), "or a pair of arrays.*the network returns 3"),
        (lambda z: (z, None), HeteroscedasticGaussian(), "or a pair of arrays.*the network returns 2: .*None"),
        (lambda z: None, Poisson(), "returns None, and no outputs"),
    ],
)
def test_more_outputs_than_a_head_takes(outputs, head, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        BayesianNetwork(lambda p, x: outputs(apply(p, x)), weights(3), head=head).given(X, COUNTS % 3)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [(np.eye(3)[COUNTS % 3], r"one-hot.*argmax\(axis=1\)"), (COUNTS[:, None] % 3, r"\(12, 1\).*y.ravel\(\)")],
)
def test_labels_in_other_shapes(y, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        network(Categorical(), 3).given(X, y)


def test_outcomes_by_name():
    """A head of one's own may return a distribution for each; others take one array."""

    def apply(params, x):
        return x @ params["w"]

    x = np.random.default_rng(0).normal(size=(12, 2))
    y = {"size": x[:, 0], "kind": (x[:, 1] > 0).astype(int)}
    weights = {"w": np.eye(2)}

    def both(z):
        return {"size": dist.Normal(z[:, 0], 1.0), "kind": dist.Bernoulli(logits=z[:, 1])}

    target = credo.nn.BayesianNetwork(apply, weights, head=both).given(x, y)
    w = np.array([[0.5, -1.0], [2.0, 0.3]])
    z = x @ w
    expected = stats.norm.logpdf(y["size"], z[:, 0]).sum() - np.logaddexp(0.0, -(2 * y["kind"] - 1) * z[:, 1]).sum()
    with double():
        found = np.asarray(target.flat().log_likelihood(np.ravel(w)))
    np.testing.assert_allclose(found.sum(), expected, rtol=1e-6)
    with pytest.raises(credo.CredoError, match="takes one array of outcomes, and y is a dict of 'kind', 'size'"):
        credo.nn.BayesianNetwork(apply, weights, head=credo.nn.Gaussian(1.0)).given(x, y)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Gaussian(np.full(12, 0.5)), r"noise is a positive number.*shape \(12,\)"),
        (lambda: Gaussian(-0.5), "noise is a positive number.*-0.5"),
        (lambda: Gaussian("0.5x"), "noise is a positive number"),
        (lambda: StudentT(4.0, np.ones(2)), "scale is a positive number"),
        (lambda: StudentT(0.0), "df is a positive number"),
        (lambda: ScaleMixture(0.5, (1.0,)), "two positive scales"),
        (lambda: ScaleMixture(0.5, (1.0, np.nan)), "two positive scales"),
    ],
)
def test_what_no_head_or_prior_can_be(make, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        make()


def test_outputs_without_a_derivative_are_refused():
    whole = BayesianNetwork(lambda p, x: apply(p, x).astype(int), weights(), head=Gaussian())
    with pytest.raises(credo.CredoError, match="outputs of type int.*no derivative"):
        whole.given(X, Y)


@pytest.mark.parametrize(
    "centre",
    [lambda h: h[None].mean(axis=1)[0], lambda h: jnp.swapaxes(h[:, None], 0, 1).mean(axis=1)[0]],
    ids=["behind an axis", "swapped"],
)
def test_rows_that_lean_on_each_other_behind_another_axis(centre):
    leaning = BayesianNetwork(lambda p, x: apply(p, x - centre(x)), weights(), head=Gaussian(0.5))
    with pytest.raises(credo.CredoError, match="a row changes with the rows beside it"):
        leaning.given(X, Y)
    apart = BayesianNetwork(
        lambda p, x: apply(p, (x[None] - x[None].mean(axis=-1, keepdims=True))[0]), weights(), head=Gaussian()
    )
    assert apart.given(X, Y).size == 12


def test_a_loader_brings_its_outcomes():
    with pytest.raises(credo.CredoError, match="A Loader brings y and weights with it"):
        network().given(credo.Loader(Rows(X, Y)), Y)


def test_constants_of_numpy_are_read_in_the_precision_of_the_fit():
    """JAX keeps what it made of an array when it first met it, and a check of ours met it in float32."""
    mean, third = X.mean(axis=0), np.full((2, 1), 1 / 3)

    def network(params, x):
        return ((x - mean) @ third)[:, 0] * params["slope"]

    target = BayesianNetwork(network, {"slope": np.ones((), np.float32)}, head=Gaussian(1.0)).given(X, Y)
    sd = credo.fit(target, credo.Laplace(num_steps=0), progress=False).sd()["weights"]["slope"]
    inputs = (X - mean) @ third
    assert float(sd) == pytest.approx(1 / np.sqrt(1 + np.sum(inputs**2)), rel=1e-12)


def test_what_numpy_draws_within_a_network_is_told():
    """The fit and each shape of a prediction had a mask of their own, and said nothing."""
    own = np.random.default_rng(0)

    def dropped(params, x):
        mask = np.random.binomial(1, 0.5, (len(x), 3))  # noqa: NPY002 - as it is found
        return jnp.tanh(x @ params["in"]["w"]) * mask @ params["out"]["w"]

    def by_its_own_generator(params, x):
        return jax.checkpoint(lambda x: x * own.random(x.shape))(x) @ params["in"]["w"] @ params["out"]["w"]

    def compiled_anew(params, x):
        return jax.jit(lambda x: x * own.random(x.shape))(x) @ params["in"]["w"] @ params["out"]["w"]

    def at_random_depth(params, x):
        h = x @ params["in"]["w"]
        for _ in range(own.permutation(9)[0]):
            h = jnp.tanh(h)
        return h @ params["out"]["w"]

    for drawing in (dropped, by_its_own_generator, compiled_anew, at_random_depth):
        with pytest.raises(credo.CredoError, match="changes from one trace to the next .*then.*draw random features"):
            BayesianNetwork(drawing, weights(), head=Gaussian()).given(X, Y)

    features = np.where(own.random((2, 3)) < 0.5, np.nan, own.random((2, 3)))

    def of_features(params, x):
        h = jnp.tanh(x @ jnp.nan_to_num(features) + np.random.default_rng(7).random(3))
        return jax.random.normal(key, (3,)) * h @ params["out"]["w"] + 0 * jnp.sum(params["in"]["w"])

    key = jax.random.key(3)
    assert BayesianNetwork(of_features, weights(), head=Gaussian()).given(X, Y).size == 12


@pytest.mark.slow
def test_rows_that_are_cast_to_another_precision_than_the_weights():
    def apply(params, x):
        image = x.astype(jnp.float32)
        settings = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jax.lax.conv_general_dilated(image, params["w"], (1, 1), "SAME", **settings).mean((1, 2))

    model = BayesianNetwork(apply, {"w": np.ones((3, 3, 1, 2), np.float32)}, head=Categorical())
    with pytest.raises(credo.CredoError, match=r"x\.astype\(params"):
        model.given(np.zeros((4, 5, 5, 1), np.uint8), np.arange(4) % 2)


def test_a_graph_whose_rows_are_known_together_alone():
    """Methods that take all rows at once fit it; the others say why they do not."""
    random = np.random.default_rng(3)
    edges, x = random.random((30, 30)) / 30, random.normal(size=(30, 4))
    params = {"in": random.normal(size=(4, 3)), "out": random.normal(size=(3, 2))}

    def network(params, x):
        return jnp.tanh(edges @ (x @ params["in"])) @ params["out"]

    target = BayesianNetwork(network, params, head=Categorical()).given(x, random.integers(0, 2, 30))
    found, asked = (
        credo.fit(target, credo.Laplace(curvature=curvature, num_steps=0, tune=False), progress=False)
        for curvature in (None, credo.GaussNewton())
    )
    np.testing.assert_array_equal(found.sd()["weights"]["in"], asked.sd()["weights"]["in"])
    chains = credo.fit(target, credo.NUTS(chains=2, num_warmup=20, num_draws=20), progress=False)
    assert chains.predict(x).probs.shape == (30, 2)
    for method in (credo.MCDropout(), credo.VBLL(), credo.Laplace(credo.laplace.MatrixFree())):
        with pytest.raises(credo.CredoError, match="only knows all 30 of them at once"):
            credo.fit(target, method, progress=False)


@pytest.mark.parametrize("missing", ["drop", "impute"])
def test_outcomes_may_be_missing_whatever_the_head(missing):
    x = np.random.default_rng(0).normal(size=(30, 3))
    y = (x[:, 0] > 0).astype(float)
    y[3] = np.nan
    masked = np.ma.masked_array(np.where(np.isnan(y), -1, y).astype(int), np.isnan(y))

    def of(head, num_outputs=1):
        return credo.nn.BayesianNetwork(lambda p, x: x @ p["w"], {"w": np.full((3, num_outputs), 0.1)}, head=head)

    for model, outcome in (
        (of(credo.nn.Bernoulli()), y),
        (of(credo.nn.Poisson()), y),
        (of(credo.nn.Categorical(), 2), y),
        (of(credo.nn.Categorical(), 2), masked),
    ):
        assert model.given(x, outcome, missing=missing).size == 29
    two = of(lambda z: {"a": dist.Normal(z[..., 0], 1.0), "b": dist.Normal(z[..., 0], 1.0)})
    assert two.given(x, {"a": y, "b": y}, missing="drop").size == 29
    with pytest.raises(credo.CredoError, match="differ in length"):
        of(credo.nn.Bernoulli()).given(x[1:], y, missing=missing)
    with pytest.raises(credo.CredoError, match="A label is 2, and"):
        of(credo.nn.Bernoulli()).given(x, np.where(y == 1, 2, y), missing=missing)
