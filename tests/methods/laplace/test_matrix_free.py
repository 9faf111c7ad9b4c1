"""Laplace without a matrix: what ``Dense()`` says, by linear solves; estimates within their errors; and no D × D."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.blocks import BlockDiagonal
from credo.linalg.matrix_free import MatrixFree as Scale
from credo.methods.laplace import matrix_free
from credo.methods.laplace.curvature import EmpiricalFisher, GaussNewton, SampledFisher
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.needs import num_bytes
from credo.methods.laplace.structure import Dense
from credo.methods.optimise.newton import Optimum, Status
from credo.methods.optimise.objective import in_unconstrained_space
from credo.nn import BayesianNetwork, Categorical, Gaussian, Isotropic
from credo.precision import double
from credo.predict import by_draws
from credo.status import CredoError

RANDOM = np.random.default_rng(11)


def normal(*shape):
    return RANDOM.normal(size=shape)


def apply(p, x):
    return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] + p["d"]


def weights(inputs=3, units=5, outputs=3):
    return {"a": normal(inputs, units), "b": normal(units), "c": normal(units, outputs), "d": normal(outputs)}


CLASSES = BayesianNetwork(apply, weights(), head=Categorical(), prior=Isotropic(2.0)).given(
    normal(7, 3), RANDOM.integers(0, 3, 7), weights=RANDOM.uniform(0.5, 2.0, 7)
)


def shape(structure, target, u, curvature=None, free=None):
    nothing = np.zeros_like(u)
    at = Optimum(u, 0.0, nothing, 0.0, None, nothing, nothing, Status.CONVERGED, 0, 0, 0)
    return structure.shape(curvature or GaussNewton(), in_unconstrained_space(target), target, at, 16, True, free)


def fit(target, **settings):
    return credo.fit(target, credo.Laplace(**settings), key=3, progress=False)


# exact where it can be -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curvature", "free"),
    [(GaussNewton(), None), (EmpiricalFisher(), np.arange(4, 20)), (SampledFisher(2), None)],
    ids=["gauss-newton", "empirical, a subset", "sampled"],
)
def test_every_basis_vector_is_mapped_as_by_the_dense_root(curvature, free):
    target = CLASSES.flat()
    with double():
        u = normal(target.dim)
        meant, found = (shape(each, target, u, curvature, free) for each in (Dense(), MatrixFree()))
        covariance = np.asarray(meant.scale.dense())
        np.testing.assert_allclose(found.scale.dense(), covariance, atol=1e-7 * covariance.max())
        np.testing.assert_allclose(found.scale.diagonal(), np.diag(covariance), rtol=1e-9)
        assert float(found.scale.log_det()) == pytest.approx(float(meant.scale.log_det()), abs=1e-8)
    assert 0 < found.min_curvature <= meant.min_curvature * (1 + 1e-9)
    assert found.figures["solver_error"] <= 1e-6
    assert found.figures["log_det_error"] == 0


def test_rows_at_a_time_change_nothing():
    """Seven weighted rows, three at a time: the last chunk is filled up with rows that do not count."""
    target = CLASSES.flat()
    with double():
        u, v = normal(target.dim), jnp.asarray(normal(target.dim))
        for curvature in (GaussNewton(), SampledFisher(2)):
            prior = np.full(target.dim, 2.0)
            whole, parts = (
                matrix_free._product(
                    matrix_free.Curvature(target, u, prior, None, curvature.fisher, chunk, target.size), v
                )
                for chunk in (7, 3)
            )
            np.testing.assert_allclose(parts, whole, rtol=1e-10, atol=1e-10)


X = normal(30, 5)
Y = X @ normal(5) + 0.3 * normal(30)


@pytest.mark.slow
def test_a_linear_network_is_bayesian_linear_regression(tmp_path):
    """Covariance, evidence and predictions; and so it is again when it comes back from a file, with its data."""
    target = BayesianNetwork(lambda w, x: x @ w, np.zeros((5, 1)), head=Gaussian(0.3), prior=Isotropic(2.0)).given(X, Y)
    posterior = fit(target, structure=credo.laplace.MatrixFree())
    covariance = np.linalg.inv(X.T @ X / 0.09 + 2.0 * np.eye(5))
    marginal = X @ X.T / 2.0 + 0.09 * np.eye(30)
    log_evidence = -0.5 * (Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    assert posterior.log_evidence.value == pytest.approx(log_evidence, rel=1e-6)
    with double():
        np.testing.assert_allclose(posterior.kind.scale.dense(), covariance, rtol=1e-6, atol=1e-12)
    assert posterior.verdict.status == "pass"
    posterior.save(tmp_path / "posterior.credo")
    again = credo.load(tmp_path / "posterior.credo", target)
    for each in (posterior, again):
        predictive = each.predict(X, rule=credo.Linearised())
        np.testing.assert_allclose(predictive.mean, X @ covariance @ X.T @ Y / 0.09, rtol=1e-6)
        np.testing.assert_allclose(predictive.epistemic, np.einsum("ij,jk,ik->i", X, covariance, X), rtol=1e-6)
    np.testing.assert_array_equal(again.sample(5, 3)["weights"], posterior.sample(5, 3)["weights"])
    alone = credo.load(tmp_path / "posterior.credo")
    np.testing.assert_allclose(np.ravel(alone.sd()["weights"]), np.sqrt(np.diag(covariance)), rtol=1e-6)
    with pytest.raises(CredoError, match="load it with the target that was fitted"):
        alone.sample(5, 3)


NOISY = BayesianNetwork(
    apply, weights(1, 4, 1), head=Gaussian(dist.LogNormal(-1.0, 1.0)), prior=Isotropic(dist.LogNormal(0.0, 1.0))
).given(np.linspace(-2, 2, 40)[:, None], np.sin(np.linspace(-2, 2, 40)) + 0.1 * normal(40))


@pytest.mark.slow  # three networks' worth of programs
def test_a_tuned_network_is_what_dense_says_and_many_outputs_are_predicted_by_draws(monkeypatch):
    """Up to 1,000 coordinates the dense evidence tunes both: the same mode, covariance, evidence and predictions."""
    dense, found = (fit(NOISY, structure=each, num_steps=300) for each in (Dense(), MatrixFree()))
    assert isinstance(found.kind.scale, BlockDiagonal)
    assert found.verdict.figures["mode_distance"] <= 0.1
    with double():
        covariance = np.asarray(dense.kind.scale.dense())
        np.testing.assert_allclose(found.kind.mean, dense.kind.mean, rtol=1e-6)
        np.testing.assert_allclose(found.kind.scale.dense(), covariance, atol=1e-6 * covariance.max())
    assert found.log_evidence.value == pytest.approx(
        dense.log_evidence.value, abs=1e-2
    )  # the step ½ gᵀA⁻¹g to the mode
    most = dense.target.dim - 1  # with one dimension more than solves are taken
    monkeypatch.setattr(by_draws, "NUM_SOLVES", most)
    x = np.linspace(-3, 3, most // 2)[:, None]  # of a row, a mean and a log scale
    for each, tolerance in ((x, 1e-5), (np.tile(x, (8, 1)), 5 * np.sqrt(2 / most))):
        expected, predictive = dense.predict(each), found.predict(each)
        np.testing.assert_allclose(predictive.mean, expected.mean, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(predictive.epistemic, expected.epistemic, rtol=tolerance)
    assert np.max(np.abs(predictive.epistemic / expected.epistemic - 1)) > 1e-3  # they were draws


# what is estimated, and what is said ---------------------------------------------------------------------------------


def test_estimates_are_within_their_errors_and_bounds():
    """16 probes of 38 coordinates: 4 standard errors, one false alarm in 16,000."""
    target = CLASSES.flat()
    with double():
        u = normal(target.dim)
        exact, found, finer = (shape(MatrixFree(num_probes=number), target, u) for number in (64, 16, 32))
        covariance = np.asarray(shape(Dense(), target, u).scale.dense())
        error = found.figures["log_det_error"]
        assert 0 < error < 3
        assert abs(float(found.scale.log_det() - exact.scale.log_det())) < 4 * error
    variances, meant = np.asarray(found.scale.diagonal()), np.asarray(exact.scale.diagonal())
    off = np.quantile(np.abs(np.sqrt(variances / meant) - 1), 0.95)
    assert 0.2 < found.figures["estimated_sd_error"] / off < 2  # 1 / 1.96 for normal errors
    unit = np.sqrt(np.diag(np.linalg.inv(covariance)))
    white = np.square(covariance * unit[:, None] * unit)  # whose entries beside the diagonal are the noise of signs
    errors = 0.5 * np.sqrt((white.sum(axis=1) / np.diag(white) - 1) / 32)
    assert finer.figures["estimated_sd_error"] == pytest.approx(np.quantile(errors, 0.95), rel=0.4)  # of 32 each
    assert 1e-3 < np.sqrt(np.mean(np.square(variances / meant - 1))) < 0.3
    assert np.all(variances <= 0.5 * (1 + 1e-9))  # those of the prior
    assert "estimated by 16 solves" in found.sentences[0]


def test_solves_that_do_not_converge_are_refused():
    with pytest.raises(credo.CredoError, match=r"residual of \d.*Raise max_products"):
        fit(CLASSES, structure=MatrixFree(max_products=1), num_steps=0)


@pytest.mark.slow
def test_solves_that_are_short_of_the_tolerance_are_said():
    posterior = fit(CLASSES, structure=MatrixFree(max_products=6), num_steps=0)
    assert 1e-3 < posterior.verdict.figures["solver_error"] < 0.1
    assert any("Raise max_products" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.slow
def test_of_a_large_network_one_solve_goes_first(monkeypatch):
    seen = []

    def solve(product, unit, Z, *rest):
        seen.append(len(Z))
        return usual(product, unit, Z, *rest)

    usual = matrix_free._solve
    monkeypatch.setattr(matrix_free, "_solve", solve)
    fit(CLASSES, structure=MatrixFree(num_probes=20), num_steps=0)
    monkeypatch.setattr(matrix_free, "COSTLY", 0)
    fit(CLASSES, structure=MatrixFree(num_probes=20), num_steps=0)
    assert seen == [16, 4, 1, 16, 3]


@pytest.mark.slow
def test_after_the_time_limit_nothing_is_drawn_for_the_verdict():
    x = normal(30, 3)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda p, x: dist.Normal(x @ p["w"], 1.0))
    target = model.given(x, x @ [1.0, 0.0, -1.0])
    whole = fit(target, structure=MatrixFree())
    cut = credo.fit(target, credo.Laplace(structure=MatrixFree()), start=whole, time_limit=1e-9, progress=False)
    assert whole.info["is_complete"]
    assert not cut.info["is_complete"]
    assert cut.info["num_densities"] == 0
    assert cut.verdict.figures["gradient_norm"] < 1e-6
    assert cut.verdict.status == "doubtful"
    assert "before draws of the Gaussian were weighed" in cut.verdict.sentences[-1]


def test_a_saddle_is_found_and_has_draws():
    """−∇² log p has ones on its diagonal and the eigenvalues 3 and −1."""
    model = credo.Model.from_log_density(
        lambda p: -0.5 * p["u"] @ p["u"] - 2 * p["u"][0] * p["u"][1],
        support={"u": dist.constraints.real},
        shape={"u": (2,)},
    )
    target = model.given().flat()
    with double():
        found = shape(MatrixFree(), target, np.zeros(2), credo.ExactHessian())
        assert -1.0 <= found.min_curvature < 0
        assert np.all(np.isfinite(found.scale.matvec(np.ones(2))))


def test_wrong_settings_and_priors_have_a_sentence():
    for wrong, shown in ((2.0, "2"), ("small", "'small'")):
        with pytest.raises(CredoError, match=f"between 0 and 1; got {shown}"):
            MatrixFree(tolerance=wrong)  # type: ignore[arg-type]
    posterior = fit(CLASSES, structure=MatrixFree(), num_steps=0)
    with pytest.raises(CredoError, match="covariance without a matrix"):
        fit(CLASSES, prior=posterior)


# no matrix -----------------------------------------------------------------------------------------------------------


def sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (np.prod(out.aval.shape) for out in equation.outvars if hasattr(out.aval, "shape"))
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


def test_nothing_of_the_size_of_a_matrix_is_ever_formed():
    """By the programs of a draw and of a variance, of 20,000 coordinates; ten million take below 6 GB, L-BFGS in it."""
    target = (
        BayesianNetwork(apply, weights(95, 200, 3), head=Categorical(), prior=Isotropic(1.0))
        .given(normal(20, 95), RANDOM.integers(0, 3, 20))
        .flat()
    )
    dim = target.dim
    assert dim > 19_000
    with double():
        product = shape(MatrixFree(), CLASSES.flat(), np.zeros(CLASSES.dim)).scale.product
        product = dataclasses.replace(
            product, target=target, centre=np.zeros(dim), prior=np.ones(dim), size=20, chunk=8
        )
        nodes = np.arange(1.0, 21.0)
        scale = Scale(product, np.ones(dim), nodes, nodes, np.ones(dim), np.zeros(()), 1e-8, 1_000, 4)
        programs = [
            jax.make_jaxpr(scale.matvec)(np.ones(dim)),
            jax.make_jaxpr(jax.vmap(scale.transpose_matvec))(np.ones((6, dim))),
        ]
    largest = [max(sizes(program.jaxpr)) for program in programs]
    assert 20 * dim <= min(largest)  # the programs were looked into
    assert max(largest) <= 4 * 21 * dim
    assert 3e9 < num_bytes(MatrixFree(), SimpleNamespace(dim=10_000_000)) < 6e9


@pytest.mark.slow  # two hundred thousand weights
def test_a_network_too_large_for_a_matrix():
    rows = normal(12, 400)
    target = BayesianNetwork(
        lambda p, x: apply(p, x)[:, 0], weights(400, 500, 1), head=Gaussian(0.3), prior=Isotropic(1.0)
    ).given(rows, np.tanh(rows[:, 0]))
    assert target.dim > 200_000
    posterior = fit(target, structure=MatrixFree(num_probes=4, tolerance=1e-6), num_steps=100)
    assert posterior.verdict.figures["solver_error"] <= 1e-3
    assert posterior.verdict.figures["log_det_error"] > 0


def test_few_weights_predict_many_rows_exactly():
    """Rows enough that draws would stand for the solves of each output: the axes do as well, without chance."""
    x = normal(150, 3)
    model = BayesianNetwork(lambda p, x: x @ p["w"], {"w": np.zeros((3, 1))}, head=Gaussian(0.5))
    posterior = fit(model.given(x, x @ np.ones(3) + 0.5 * normal(150)), structure=MatrixFree())
    covariance = np.linalg.inv(x.T @ x / 0.25 + np.eye(3))
    expected = np.einsum("ni,ij,nj->n", x, covariance, x)
    np.testing.assert_allclose(np.ravel(posterior.predict(x, credo.Linearised()).epistemic), expected, rtol=1e-6)
