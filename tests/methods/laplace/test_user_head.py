"""Heads that a user writes: curvature by autodiff, every structure, the evidence, and linearised predictions."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import Distribution, constraints
from scipy import special

import credo
from cases import first_of
from credo.laplace import Dense, Diagonal, EmpiricalFisher, GaussNewton, Kronecker, MatrixFree, SampledFisher
from credo.model.data import Rows
from credo.model.fisher import Expected, Sampled, Seen
from credo.model.user_head import UserHead
from credo.nn import BayesianNetwork, Custom, Gaussian, Isotropic, Poisson
from credo.precision import double
from credo.status import CredoError

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(60, 3))
ETA = X @ [0.5, -0.3, 0.2]
COUNTS = RANDOM.poisson(np.exp(ETA))
WEIGHTS = {"in": np.linspace(-0.6, 0.8, 12).reshape(3, 4), "out": np.linspace(0.5, -0.4, 4).reshape(4, 1)}


class PoissonOfUser(dist.Poisson):
    """A law that no table knows."""


class NormalOfUser(dist.Normal):
    """Another."""


class WithoutDraws(Distribution):
    """Laplace's law, as someone writes it who wants a density alone."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.real
    pytree_data_fields = ("loc",)

    def __init__(self, loc, *, validate_args=None):
        self.loc = loc
        super().__init__(np.shape(loc), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        raise NotImplementedError

    def log_prob(self, value, intermediates=None):
        return -jnp.abs(value - self.loc) - np.log(2.0)


def wavy(p, x):
    return jnp.tanh(x @ p["in"]) @ p["out"]


def linear(p, x):
    return x @ p["w"]


def poisson(z):
    return PoissonOfUser(jnp.exp(z[..., 0]))


def given(head, y=COUNTS, apply=wavy, weights=WEIGHTS, **settings):
    return BayesianNetwork(apply, weights, head=head, **settings).given(X, y)


def fit(target, **settings):
    return credo.fit(target, credo.Laplace(**settings), key=0, progress=False)


def informations(target, fisher):
    """F (M, K, K) of each row where all coordinates are zero."""
    with double():
        rows = Rows(jnp.asarray(target.x), jnp.asarray(target.y), jnp.ones(target.size))
        roots = fisher.roots(target.flat(), jnp.zeros(target.dim), rows)
        return np.asarray(jnp.einsum("mkc,mlc->mkl", roots, roots))


# the information -----------------------------------------------------------------------------------------------------

# heads of a linear network, whose outputs at weights of zero are zero, with F there
ONE = {"w": np.zeros((3, 1))}
TWO = {"w": np.zeros((3, 2))}
LISTED = {
    "binomial of a user": (
        Custom(lambda z: dist.BetaBinomial(jnp.exp(z[:, 0]), jnp.exp(z[:, 1]), 1)),
        TWO,
        [[0.25, -0.25], [-0.25, 0.25]],  # total 1: Bernoulli of log odds z₁ − z₂
    ),
    "ordered classes": (
        Custom(lambda z: dist.OrderedLogistic(z[:, 0], jnp.array([-1.0, 1.0]))),
        ONE,
        [[sum(d**2 / p for d, p in [(-0.19661193, 0.26894142), (0.0, 0.46211716), (0.19661193, 0.26894142)])]],
    ),
}
DRAWN = {
    "Poisson": (Custom(poisson), ONE, [[1.0]]),
    "normal": (Custom(lambda z: NormalOfUser(z[:, 0], jnp.exp(z[:, 1]))), TWO, [[1.0, 0.0], [0.0, 2.0]]),
    "gamma": (
        Custom(lambda z: dist.Gamma(jnp.exp(z[:, 0]), jnp.exp(z[:, 1]))),
        TWO,
        [[special.polygamma(1, 1.0), -1.0], [-1.0, 1.0]],
    ),
    "negative binomial": (Custom(lambda z: dist.NegativeBinomial2(jnp.exp(z[..., 0]), 3.0)), ONE, [[3.0 / 4.0]]),
    "with a parameter": (
        Custom(lambda z, scale: NormalOfUser(z[..., 0], scale), {"scale": dist.LogNormal(0.0, 1.0)}),
        ONE,
        [[1.0, 0.0], [0.0, 2.0]],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_outcomes_that_can_be_listed_have_their_information_exactly(name):
    head, weights, F = LISTED[name]
    target = given(head, np.minimum(COUNTS, 1), linear, weights)
    assert isinstance(target.head, UserHead)
    np.testing.assert_allclose(informations(target, Expected()), np.broadcast_to(F, (60, *np.shape(F))), atol=1e-7)


COVARIANCE = np.array([[1.0, 0.9], [0.9, 1.2]])


def correlated(z):
    """Sds e^z₃ and one, correlation tanh z₄."""
    sd, r = jnp.exp(z[:, 2]), jnp.tanh(z[:, 3])
    rows = [jnp.stack([sd, 0.0 * sd], axis=-1), jnp.stack([r, jnp.sqrt(1 - r**2)], axis=-1)]
    return dist.MultivariateNormal(z[:, :2], scale_tril=jnp.stack(rows, axis=-2))


def test_normal_outcomes_with_a_covariance_have_it_exactly():
    y = np.stack([COUNTS, ETA], axis=1)
    target = given(Custom(correlated), y, linear, {"w": np.zeros((3, 4))})
    assert isinstance(target.head, UserHead)
    found = informations(target, Expected())  # (1 + ρ²) / (1 − ρ²)² of a correlation ρ, 2 of a log sd
    np.testing.assert_allclose(found, np.broadcast_to(np.diag([1.0, 1.0, 2.0, 1.0]), found.shape), atol=1e-12)


def test_a_linear_network_with_a_covariance_of_its_outcomes_has_the_exact_posterior():
    y = X @ RANDOM.normal(size=(3, 2)) + RANDOM.multivariate_normal([0.0, 0.0], COVARIANCE, size=60)
    head = Custom(lambda z: dist.MultivariateNormal(z, covariance_matrix=COVARIANCE))
    posterior = fit(given(head, y, linear, TWO), tune=False)
    inverse, lower = np.linalg.inv(COVARIANCE), np.asarray(posterior.kind.scale.lower)
    precision = np.kron(X.T @ X, inverse) + np.eye(6)
    np.testing.assert_allclose(lower @ lower.T @ precision, np.eye(6), atol=1e-9)
    mean = np.linalg.solve(precision, np.kron(X.T, inverse) @ y.ravel())
    np.testing.assert_allclose(posterior.kind.mean, mean, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "negative binomial" else []) for name in DRAWN]
)
def test_others_have_it_on_average(name):
    """Of 60 rows, which draw by themselves, 65,000 outcomes."""
    head, weights, F = DRAWN[name]
    target = given(head, COUNTS + 1.0, linear, weights)
    assert isinstance(target.head, UserHead)
    found = informations(target, Expected())
    error = found.std(axis=0) / np.sqrt(60)
    assert np.all(error < 0.02 * np.max(F))
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - F), 4 * error + 1e-6)


def test_a_few_random_columns_have_it_on_average_too():
    head, weights, F = DRAWN["normal"]
    target = given(head, COUNTS, linear, weights)
    found = np.concatenate([informations(target, Sampled(4, seed)) for seed in range(40)])
    error = found.std(axis=0) / np.sqrt(len(found))
    assert np.all(error < 0.06)
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - F), 4 * error)


def test_the_outer_product_of_the_outcome_seen():
    target = given(Custom(poisson), apply=linear, weights=ONE)
    np.testing.assert_allclose(informations(target, Seen())[:, 0, 0], (COUNTS - 1.0) ** 2, atol=1e-6)


@pytest.mark.slow
def test_rows_that_are_alike_draw_apart():
    """Of a design with three levels 8 draws stood for each of thousands of rows, and sds were up to 1.7 times off."""
    random = np.random.default_rng(0)
    group = random.integers(0, 3, 3_000)
    y = random.negative_binomial(1.0, 1 / (1 + np.array([0.3, 0.8, 2.0])[group]))
    head = Custom(lambda z: dist.NegativeBinomial2(jnp.exp(z[..., 0]), 1.0))
    network = BayesianNetwork(linear, ONE, head=head, prior=Isotropic(0.01))
    posterior = fit(network.given(np.eye(3)[group], y))
    rate = np.exp(posterior.mean()["weights"]["w"][:, 0])
    information = np.bincount(group) * rate / (1 + rate) + 0.01
    np.testing.assert_allclose(posterior.sd()["weights"]["w"][:, 0], information**-0.5, rtol=0.03)  # 1 % each


@pytest.mark.slow
def test_draws_at_the_edge_of_the_support_do_not_end_the_fit():
    """In single precision gamma draws of a small shape underflow to zero, whose log density is infinite."""
    y = np.random.default_rng(0).gamma(0.05, 1.0, 60).clip(1e-30)
    weights = {"w": np.array([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0]])}
    head = Custom(lambda z: dist.Gamma(jnp.exp(z[:, 0] - 3.0), jnp.exp(z[:, 1])))
    network = BayesianNetwork(linear, weights, head=head)
    posterior = credo.fit(network.given(X, y), credo.Laplace(), key=0, precision="float32", progress=False)
    assert np.all(np.isfinite(posterior.sd()["weights"]["w"]))


# posteriors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", first_of([Kronecker(), Dense(), Diagonal(), MatrixFree()]), ids=str)
def test_the_posterior_is_that_of_the_head_that_is_known(structure):
    known, found = (fit(given(head), structure=structure, num_steps=300) for head in (Poisson(), Custom(poisson)))
    assert found.info["curvature"] == "GaussNewton"
    assert found.info["structure"] == known.info["structure"]
    np.testing.assert_allclose(found.kind.mean, known.kind.mean, atol=1e-3)
    np.testing.assert_allclose(found.log_evidence.value, known.log_evidence.value, atol=0.1)
    ours, theirs = (each.predict(X[:20]) for each in (found, known))
    assert np.all(np.abs(ours.mean - theirs.mean) < 4 * np.sqrt(theirs.epistemic) / 16)  # of 256 draws
    np.testing.assert_allclose(ours.sd, theirs.sd, rtol=0.1)
    np.testing.assert_allclose(ours.log_prob(COUNTS[:20]), theirs.log_prob(COUNTS[:20]), atol=0.05)
    assert found.verdict.status == known.verdict.status


def test_one_row_alone_has_the_curvature_that_it_has_among_others():
    """Kronecker factors and last layers look at rows one at a time, and in other chunks than a dense matrix."""
    target = given(Custom(poisson))
    dense, diagonal = (fit(target, structure=structure, num_steps=0) for structure in (Dense(), Diagonal()))
    with double():
        precision = np.linalg.inv(np.asarray(dense.kind.scale.dense()))
        variances = np.diagonal(np.asarray(diagonal.kind.scale.dense()))
    np.testing.assert_allclose(1 / variances, np.diag(precision), rtol=1e-4)


@pytest.mark.parametrize("curvature", [GaussNewton(), EmpiricalFisher(), SampledFisher(2)], ids=str)
def test_every_curvature_of_outer_products_serves(curvature):
    posterior = fit(given(Custom(poisson)), curvature=curvature, num_steps=300)
    assert posterior.verdict.status != "failed"
    assert np.all(np.isfinite(posterior.predict(X[:5]).sd))


@pytest.mark.slow
def test_the_last_layer_alone():
    known, found = (
        fit(given(head), subset=credo.laplace.LastLayer(), num_steps=300) for head in (Poisson(), Custom(poisson))
    )
    np.testing.assert_allclose(found.sd()["weights"]["out"], known.sd()["weights"]["out"], rtol=0.02)
    assert np.all(found.sd()["weights"]["in"] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [1.0, dist.LogNormal(0.0, 2.0)], ids=["known", "unknown"])
def test_parameters_of_the_head_are_part_of_the_gaussian(precision):
    """Cutpoints are confounded with a bias: by the evidence their sds were a tenth, and predictions wrong."""
    random = np.random.default_rng(1)
    x = np.column_stack([random.normal(size=(300, 2)), np.ones(300)])
    at = x @ [1.0, -0.5, 0.3] + random.logistic(size=300)
    y = np.digitize(at, [-1.0, 0.5, 2.0])
    ordered = dist.TransformedDistribution(
        dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    head = Custom(lambda z, cuts: dist.OrderedLogistic(z[:, 0], cuts), {"cuts": ordered})
    network = BayesianNetwork(linear, {"w": np.zeros((3, 1))}, head=head, prior=Isotropic(precision))
    posterior = fit(network.given(x, y))
    assert posterior.info.get("tuned") == (None if precision == 1.0 else ["precision"])
    exact = credo.fit(network.given(x, y), credo.NUTS(num_draws=500), key=1, progress=False)
    sd = exact.sd()["cuts"]
    assert np.all(np.abs(posterior.mean()["cuts"] - exact.mean()["cuts"]) < 0.3 * sd)
    np.testing.assert_allclose(posterior.sd()["cuts"], sd, rtol=0.15 if precision == 1.0 else 0.3)
    np.testing.assert_allclose(posterior.sd()["weights"]["w"][:2], exact.sd()["weights"]["w"][:2], rtol=0.15)
    np.testing.assert_allclose(posterior.predict(x).probs, exact.predict(x).probs, atol=0.02)


@pytest.mark.slow
def test_a_dispersion_is_as_uncertain_as_it_is():
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=(400, 3)), np.ones(400)])
    mean = np.exp(x @ [0.5, -0.3, 0.2, 1.0])
    y = random.negative_binomial(2.0, 2.0 / (2.0 + mean))
    wide = dist.LogNormal(0.0, 10.0)
    head = Custom(lambda z, shape: dist.NegativeBinomial2(jnp.exp(z[..., 0]), shape), {"shape": wide})
    network = BayesianNetwork(linear, {"w": np.zeros((4, 1))}, head=head)
    posterior = fit(network.given(x, y))
    exact = credo.fit(network.given(x, y), credo.NUTS(num_draws=500), key=1, progress=False)
    assert abs(posterior.mean()["shape"] - exact.mean()["shape"]) < 0.3 * exact.sd()["shape"]
    np.testing.assert_allclose(posterior.sd()["shape"], exact.sd()["shape"], rtol=0.15)


@pytest.mark.slow
def test_a_prior_of_the_head_s_parameter_counts_beside_precisions_that_are_tuned():
    head = Custom(
        lambda z, shape: dist.NegativeBinomial2(jnp.exp(z[..., 0]), shape), {"shape": dist.LogNormal(1.0, 0.02)}
    )
    posterior = fit(given(head, apply=linear, weights=ONE, prior=Isotropic(dist.LogNormal(0.0, 2.0))))
    assert posterior.info["tuned"] == ["precision"]
    np.testing.assert_allclose(posterior.sd()["shape"] / posterior.mean()["shape"], 0.02, rtol=0.02)


@pytest.mark.slow
def test_several_outcomes_and_several_outputs_a_row(tmp_path):
    """A count and a number of each row, from a network of two outputs; kept in a file and read again."""

    def apply(p, x):
        return {"count": x @ p["w"][:, 0], "size": x @ p["w"][:, 1:]}

    def head(z, scale):
        return {"n": PoissonOfUser(jnp.exp(z["count"])), "s": NormalOfUser(z["size"][:, 0], scale)}

    y = {"n": COUNTS, "s": ETA + 0.1 * np.random.default_rng(1).normal(size=60)}
    network = BayesianNetwork(apply, TWO, head=Custom(head, {"scale": dist.HalfNormal(1.0)}))
    posterior = fit(network.given(X, y))
    predictive = posterior.predict(X)
    assert np.corrcoef(predictive.mean["s"], y["s"])[0, 1] > 0.98
    np.testing.assert_allclose(posterior.mean()["scale"], 0.1, rtol=0.3)
    posterior.save(tmp_path / "p.credo")
    chains = credo.fit(network.given(X, y), credo.NUTS(num_draws=100), key=0, progress=False)
    np.testing.assert_allclose(posterior.mean()["scale"], chains.mean()["scale"], rtol=0.1)
    again = credo.load(tmp_path / "p.credo", network)
    np.testing.assert_allclose(again.predict(X).mean["n"], predictive.mean["n"])


@pytest.mark.slow
def test_weights_of_rows_count_them():
    often = np.where(np.arange(60) < 30, 2.0, 1.0)
    twice = np.r_[np.arange(60), np.arange(30)]
    network = BayesianNetwork(linear, ONE, head=Custom(poisson))
    weighted = fit(network.given(X, COUNTS, weights=often))
    repeated = fit(network.given(X[twice], COUNTS[twice]))
    np.testing.assert_allclose(weighted.kind.mean, repeated.kind.mean, atol=1e-3)
    np.testing.assert_allclose(weighted.sd()["weights"]["w"], repeated.sd()["weights"]["w"], rtol=0.02)


# what cannot be ------------------------------------------------------------------------------------------------------


def test_a_law_without_draws_is_another_approximation():
    target = given(Custom(lambda z: WithoutDraws(z[..., 0])), ETA)
    assert target.head is None
    posterior = fit(target)
    assert any("Fisher information of these outcomes is not known" in said for said in posterior.verdict.sentences)
    with pytest.raises(CredoError, match=r"not known for this one: use structure=Dense\(\) or Diagonal\(\)"):
        fit(target, structure=Kronecker())


def test_a_head_that_sees_all_rows_is_told_apart():
    """An offset in its closure was that of the first row in the curvature of them all."""
    offset = np.linspace(0.0, 4.0, 60)
    target = given(Custom(lambda z: PoissonOfUser(jnp.exp(z[:, 0] + offset))))
    assert target.head is None
    assert any("an offset or exposure is one of them" in said for said in fit(target).verdict.sentences)


def test_rules_of_known_heads_say_which_serves():
    posterior = fit(given(Custom(poisson)), num_steps=50)
    for rule in (credo.Probit(), credo.Quadrature()):
        with pytest.raises(CredoError, match=r"use Linearised\(\)"):
            posterior.predict(X, rule)


@pytest.mark.slow
def test_a_head_of_credo_s_stays_what_it_is():
    assert given(Gaussian(0.1), ETA).head.name == "normal"
    assert given(Custom(lambda z: dist.Normal(z[..., 0], 0.1)), ETA).head.name == "normal"
