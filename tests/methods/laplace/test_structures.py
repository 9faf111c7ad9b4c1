"""Structures and curvatures of networks: by layers as by products, exact where they can be; low rank and a diagonal."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sklearn.datasets import load_digits

import credo
from cases import first_of
from credo.methods.laplace import layered
from credo.methods.laplace.curvature import EmpiricalFisher, GaussNewton, SampledFisher
from credo.methods.optimise.newton import Optimum, Status
from credo.methods.optimise.objective import in_unconstrained_space
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Categorical, Gaussian, HeteroscedasticGaussian, Isotropic, StudentT
from credo.precision import double
from credo.predict import by_layers

RANDOM = np.random.default_rng(5)


def normal(*shape):
    return RANDOM.normal(size=shape)


def dense(p, x):
    return (p["scale"] * jnp.tanh(x @ p["a"] + p["b"])) @ p["c"].T + p["d"]


def convolutional(p, x):
    image = jax.lax.conv_general_dilated(x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(image).reshape(len(x), -1) @ p["w"]


def with_a_class_that_is_zero(p, x):
    return jnp.concatenate([jnp.zeros((len(x), 1)), jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]], axis=1)


NETWORKS = {
    "class that is zero": (with_a_class_that_is_zero, {"a": normal(3, 4), "b": normal(4), "c": normal(4, 2)}, (3,)),
    "dense": (dense, {"a": normal(3, 4), "b": normal(4), "scale": normal(4), "c": normal(3, 4), "d": normal(3)}, (3,)),
    "convolutional": (convolutional, {"k": normal(3, 3, 1, 2), "w": normal(18, 3)}, (3, 3, 1)),
}


def target_of(name):
    apply, params, shape = NETWORKS[name]
    network = BayesianNetwork(apply, params, head=Categorical(), prior=Isotropic(2.0))
    weights = RANDOM.uniform(0.5, 2.0, 7)
    return network.given(normal(7, *shape), RANDOM.integers(0, 3, 7), weights=weights).flat()


def at(u):
    nothing = np.zeros_like(u)
    return Optimum(u, 0.0, nothing, 0.0, None, nothing, nothing, Status.CONVERGED, 0, 0, 0)


@pytest.mark.parametrize("curvature", [GaussNewton(), EmpiricalFisher()], ids=["gauss_newton", "empirical"])
@pytest.mark.parametrize("name", first_of(NETWORKS))
def test_matrices_by_layers_are_those_by_products(name, curvature, monkeypatch):
    """And the empirical Fisher matrix is the sum of outer products of gradients."""
    target = target_of(name)
    free = np.delete(np.arange(target.dim), [1, target.dim - 2])
    with double():
        u = RANDOM.normal(size=target.dim)
        objective = in_unconstrained_space(target)
        found = {}
        for is_layered in (True, False):
            if not is_layered:
                monkeypatch.setattr(layered, "layers_or_none", lambda *_: None)
            found[is_layered] = [curvature.matrix(objective, target, at(u), 16, f) for f in (None, free)]
            found[is_layered] += [curvature.diagonal(objective, target, at(u), 16, f) for f in (None, free)]
        if isinstance(curvature, EmpiricalFisher):
            g = np.asarray(jax.jit(jax.jacrev(target.log_likelihood))(jnp.asarray(u)))
            expected = (g / target.weights[:, None]).T @ g + 2.0 * np.eye(target.dim)
            np.testing.assert_allclose(found[True][0], expected, atol=1e-10)
    for own, products in zip(found[True], found[False], strict=True):
        np.testing.assert_allclose(own, products, atol=1e-10)
    np.testing.assert_allclose(found[True][2], np.diag(found[True][0]), atol=1e-10)
    np.testing.assert_allclose(found[True][1], found[True][0][np.ix_(free, free)], atol=1e-10)


HEADS = {
    "of two columns": Gaussian(0.5),
    "known": Gaussian(0.5),
    "learned": Gaussian(dist.LogNormal(0.0, 1.0)),
    "t": StudentT(df=4.0, scale=0.5),
    "of each row": HeteroscedasticGaussian(),
}


@pytest.mark.parametrize("curvature", [GaussNewton(), EmpiricalFisher()], ids=["gauss_newton", "empirical"])
@pytest.mark.parametrize("name", first_of(HEADS))
def test_the_scale_of_the_noise_has_its_place(name, curvature, monkeypatch):
    """Where weights do not change it no pass is made for it, of all coordinates or of the weights alone."""
    has_two = name in ("of two columns", "of each row")
    params = {"a": normal(3, 4), "b": normal(4), "c": normal(4, 2 if has_two else 1)}

    def apply(p, x):
        found = jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]
        return found if has_two else found[:, 0]

    network = BayesianNetwork(apply, params, head=HEADS[name], prior=Isotropic(2.0))
    y = normal(7, 2) if name == "of two columns" else normal(7)
    target = network.given(normal(7, 3), y, weights=RANDOM.uniform(0.5, 2.0, 7)).flat()
    weights = np.arange(target.dim - sum(each.size for each in params.values()), target.dim)
    assert (weights[0] > 0) == (name == "learned")
    with double():
        u, objective = RANDOM.normal(size=target.dim), in_unconstrained_space(target)
        found = {}
        for is_layered in (True, False):
            if not is_layered:
                monkeypatch.setattr(layered, "layers_or_none", lambda *_: None)
            found[is_layered] = [curvature.matrix(objective, target, at(u), 16, free) for free in (None, weights)]
            found[is_layered] += [curvature.diagonal(objective, target, at(u), 16, free) for free in (None, weights)]
    for own, products in zip(found[True], found[False], strict=True):
        np.testing.assert_allclose(own, products, atol=1e-10)


@pytest.mark.slow  # a program for each seed
def test_a_sampled_fisher_is_unbiased_and_its_signs_are_those_of_the_row():
    target = target_of("dense")
    with double():
        u = RANDOM.normal(size=target.dim)
        objective = in_unconstrained_space(target)
        full = GaussNewton().matrix(objective, target, at(u), 64)
        many = [SampledFisher(num_columns=1, seed=seed).matrix(objective, target, at(u), 64) for seed in range(12)]
        fine = SampledFisher(num_columns=4096).matrix(objective, target, at(u), 64)
    spread = np.std(many, axis=0, ddof=1)
    assert spread.max() > 1e-3  # it is random
    assert np.linalg.norm(fine - full) < 5 * np.linalg.norm(spread) / 64
    assert np.linalg.norm(np.mean(many, axis=0) - full) < 3 * np.linalg.norm(spread) / np.sqrt(12)


# exact where they can be ---------------------------------------------------------------------------------------------

X = normal(30, 5)
Y = X @ normal(5) + 0.3 * normal(30)
LINEAR = BayesianNetwork(lambda w, x: x @ w, np.zeros((5, 1)), head=Gaussian(0.3), prior=Isotropic(2.0)).given(X, Y)


@pytest.mark.parametrize(
    "structure",
    [credo.laplace.Dense(), credo.laplace.Kronecker(), credo.laplace.LowRank(5)],
    ids=["dense", "kronecker", "low rank"],
)
def test_a_linear_network_is_bayesian_linear_regression(structure):
    method = credo.Laplace(structure=structure, curvature=GaussNewton())
    posterior = credo.fit(LINEAR, method, key=0, progress=False)
    covariance = np.linalg.inv(X.T @ X / 0.09 + 2.0 * np.eye(5))
    marginal = X @ X.T / 2.0 + 0.09 * np.eye(30)
    log_evidence = -0.5 * (Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    assert posterior.log_evidence.value == pytest.approx(log_evidence, rel=1e-6)
    with double():
        np.testing.assert_allclose(posterior.kind.scale.dense(), covariance, rtol=1e-6, atol=1e-12)
    predictive = posterior.predict(X, rule=credo.Linearised())
    np.testing.assert_allclose(predictive.mean, X @ covariance @ X.T @ Y / 0.09, rtol=1e-6)
    np.testing.assert_allclose(predictive.epistemic, np.einsum("ij,jk,ik->i", X, covariance, X), rtol=1e-6)


# low rank ------------------------------------------------------------------------------------------------------------


def shape(structure, target, u, curvature=None, free=None):
    return structure.shape(curvature or GaussNewton(), in_unconstrained_space(target), target, at(u), 16, True, free)


def test_enough_directions_are_the_full_matrix():
    """Seven rows of three classes: a Gauss-Newton matrix of rank 14."""
    target = target_of("dense")
    with double():
        u = RANDOM.normal(size=target.dim)
        full = shape(credo.laplace.Dense(), target, u).scale
        found = shape(credo.laplace.LowRank(14), target, u)
        np.testing.assert_allclose(found.scale.dense(), full.dense(), atol=1e-8)
        assert float(found.scale.log_det()) == pytest.approx(float(full.log_det()), rel=1e-8)
        some = np.arange(3, 12)
        np.testing.assert_allclose(
            shape(credo.laplace.LowRank(9), target, u, free=some).scale.dense(),
            shape(credo.laplace.Dense(), target, u, free=some).scale.dense(),
            atol=1e-8,
        )


@pytest.mark.parametrize(
    "prior",
    [dist.ImproperUniform(dist.constraints.real, (), (3,)), dist.StudentT(3.0, 0.0, 1.0).expand([3])],
    ids=["flat", "heavy-tailed"],
)
def test_every_direction_is_dense_under_priors_that_are_no_precision(prior):
    """Curvature zero, or negative in the tails, where the data hold the parameters all the same."""
    x = RANDOM.normal(size=(60, 3))
    target = credo.Model({"b": prior}, lambda params, x: dist.Normal(x @ params["b"], 1.0)).given(x, x @ [5.0, -4, 3])
    one, other = (
        credo.fit(target, credo.Laplace(structure=structure, curvature=GaussNewton()), progress=False)
        for structure in (credo.laplace.Dense(), credo.laplace.LowRank(3))
    )
    assert one.verdict.status == other.verdict.status == "pass"
    np.testing.assert_allclose(one.sd()["b"], other.sd()["b"], rtol=1e-6)


@pytest.mark.parametrize("rank", [1, 4])
def test_fewer_directions_keep_the_diagonal_of_the_precision_and_are_positive(rank):
    target = target_of("convolutional")
    with double():
        u = RANDOM.normal(size=target.dim)
        precision = GaussNewton().matrix(in_unconstrained_space(target), target, at(u), 64)
        found = shape(credo.laplace.LowRank(rank), target, u)
        mine = np.linalg.inv(np.asarray(found.scale.dense()))
    np.testing.assert_allclose(np.diag(mine), np.diag(precision), rtol=1e-8)
    assert found.min_curvature >= 2.0 * (1 - 1e-12)  # to rounding
    values = np.linalg.eigvalsh(precision - 2.0 * np.eye(len(u)))[-rank:]
    rest = mine - np.diag(np.diag(mine))
    kept = np.linalg.eigvalsh(rest + np.diag(np.diag(precision) - 2.0))[-rank:]
    np.testing.assert_allclose(kept, values, rtol=0.3)  # the leading directions, beside the others' diagonal


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_covariances_and_variances_by_layers_are_those_by_jacobians(name, monkeypatch):
    target, (apply, _, row) = target_of(name), NETWORKS[name]
    x = normal(6, *row)

    def outputs(v, one):
        return apply(target.constrain(v)["weights"], one[None])[0]

    monkeypatch.setattr(by_layers, "FEW", 1_000)
    monkeypatch.setattr(by_layers, "SMALL", 0)
    with double():
        u = jnp.asarray(RANDOM.normal(size=target.dim))
        jacobian = jax.vmap(lambda one: jax.jacrev(lambda v: outputs(v, one))(u))(x)
        for structure in (credo.laplace.Dense(), credo.laplace.LowRank(3), credo.laplace.Diagonal()):
            scale = shape(structure, target, np.asarray(u)).scale
            layers = find_layers(outputs, u, x[0])
            plan = by_layers.plan(layers, tuple(layers.reached), scale, 6)
            assert plan is not None
            _, found = by_layers.covariances(outputs, scale, plan.prepared, u, x)
            expected = np.einsum("mkp,pq,mlq->mkl", jacobian, np.asarray(scale.dense()), jacobian)
            np.testing.assert_allclose(found, expected, atol=1e-10)
            _, variances = by_layers.covariances(outputs, scale, plan.prepared, u, x, by_layers.alone)
            np.testing.assert_allclose(variances, np.einsum("mkk->mk", expected), atol=1e-10)


# what is said --------------------------------------------------------------------------------------------------------


def test_parameters_of_no_layer_are_named():
    target = target_of("dense")
    with double():
        found = shape(credo.laplace.Kronecker(), target, RANDOM.normal(size=target.dim))
    assert any("weights.scale has its exact diagonal" in sentence for sentence in found.sentences)


def test_wrong_requests_are_said():
    target = target_of("dense")
    u = np.zeros(target.dim)
    with double():
        with pytest.raises(credo.CredoError, match="rank of at most"):
            shape(credo.laplace.LowRank(100), target, u)
        with pytest.raises(credo.CredoError, match="never negative"):
            shape(credo.laplace.LowRank(3), target, u, credo.ExactHessian())
        with pytest.raises(credo.CredoError, match="say curvature=GaussNewton"):
            shape(credo.laplace.Kronecker(), target, u, credo.ExactHessian())


@pytest.mark.parametrize("structure", [credo.laplace.Dense(), credo.laplace.Diagonal(), credo.laplace.Kronecker()])
def test_rows_in_uneven_chunks_count_once(structure, monkeypatch):
    """The last chunk is filled up with rows that count nothing."""
    random = np.random.default_rng(5)
    x, params = random.normal(size=(50, 3)), {"in": random.normal(size=(3, 40)), "out": random.normal(size=40)}
    target = credo.nn.BayesianNetwork(
        lambda params, x: jnp.tanh(x @ params["in"]) @ params["out"], params, head=credo.nn.Gaussian(0.5)
    ).given(x, np.sin(x[:, 0]))
    method = credo.Laplace(structure, credo.GaussNewton(), num_steps=0, tune=False)
    whole = credo.fit(target, method, progress=False).sd()["weights"]

    sums = layered.summed

    def in_parts(function, target, u, numbers, *static, size=0):
        """Four chunks of 13 rows, of which the last has 11."""
        monkeypatch.setattr(layered, "MEMORY", 13 * 32 * numbers)
        return sums(function, target, u, numbers, *static)

    monkeypatch.setattr(layered, "summed", in_parts)
    parts = credo.fit(target, method, progress=False).sd()["weights"]
    for name in params:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-8)


def test_low_rank_in_single_precision_is_that_in_double():
    """Of as many rows as XLA's own sums go wrong from: sds were up to three times as large."""
    pixels, digit = load_digits(return_X_y=True)
    target = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] + p["d"],
        {"a": normal(64, 16) / 8, "b": np.zeros(16), "c": normal(16, 10) / 4, "d": np.zeros(10)},
        head=Categorical(),
        prior=Isotropic(3.0),
    ).given(pixels[:700] / 16, digit[:700])
    method = credo.Laplace(structure=credo.laplace.LowRank(10), num_steps=0)
    single, double_ = (
        credo.fit(target, method, key=0, precision=precision, progress=False).kind.scale.diagonal()
        for precision in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double_, rtol=1e-3)
