"""MAP: the mode in the user's own space, found to the last digits, and refused where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from sklearn.linear_model import LogisticRegression, Ridge

from credo.algorithm import Options
from credo.fitting import fit, resume
from credo.methods.optimise import MAP, objective
from credo.methods.optimise.map import FIRST_ORDER
from credo.methods.optimise.minibatch import _order, ascend, default_optimiser
from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError

RNG = np.random.default_rng(20)
X = RNG.normal(size=(300, 4)) * [1.0, 5.0, 0.2, 1.0]
Y = (RNG.uniform(size=300) < 1 / (1 + np.exp(-X @ [1.0, -0.2, 2.0, 0.0] - 0.5))).astype(int)
CALLS = []


def bernoulli(params, x):
    CALLS.append(1)
    return dist.BernoulliLogits(params["b"] + x @ params["w"])


def gaussian(params, x):
    return dist.Normal(x @ params["w"], 0.5)


def per_row_mean(params, x):
    return dist.Normal(params["m"], 1.0)


def free(*shape):
    return dist.ImproperUniform(constraints.real, shape, ())


LOGISTIC = Model({"b": free(), "w": dist.Normal(0.0, 0.7).expand([4])}, bernoulli)


def test_equals_penalised_logistic_regression():
    peer = LogisticRegression(C=0.7**2, tol=1e-12, solver="newton-cholesky").fit(X, Y)
    posterior = fit(LOGISTIC.given(X, Y), MAP())
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["gradient_norm"] <= 1e-8
    assert posterior.verdict.figures["min_curvature"] > 0
    np.testing.assert_allclose(posterior.mean()["w"], peer.coef_[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(posterior.mean()["b"], peer.intercept_[0], rtol=1e-6)


def test_equals_ridge_regression():
    y = X @ [1.0, 0.0, -1.0, 2.0] + 0.5 * RNG.normal(size=300)
    posterior = fit(Model({"w": dist.Normal(0.0, 2.0).expand([4])}, gaussian).given(X, y), MAP())
    peer = Ridge(alpha=0.5**2 / 2.0**2, fit_intercept=False, solver="cholesky").fit(X, y)
    np.testing.assert_allclose(posterior.mean()["w"], peer.coef_, rtol=1e-10)


@pytest.mark.parametrize(
    ("prior", "mode"),
    [
        (dist.Gamma(3.0, 2.0), 2 / 2),
        (dist.Beta(2.0, 5.0), 1 / 5),
        (dist.Dirichlet(np.array([2.0, 3.0, 5.0])), np.array([1, 2, 4]) / 7),
        (dist.InverseGamma(3.0, 2.0), 2 / 4),
    ],
    ids=["gamma", "beta", "dirichlet", "inverse gamma"],
)
def test_has_no_jacobian(prior, mode):
    posterior = fit(Model({"x": prior}, None).given(), MAP())
    np.testing.assert_allclose(posterior.mean()["x"], mode, rtol=1e-9)
    assert "no Jacobian" in posterior.info["mode"]


def test_a_mode_at_a_very_small_number_is_no_boundary():
    posterior = fit(Model({"x": dist.LogNormal(-40.0, 1.0)}, None).given(), MAP())
    assert posterior.verdict.status == "pass"
    np.testing.assert_allclose(posterior.mean()["x"], np.exp(-41.0), rtol=1e-9)


def test_second_fit_compiles_and_traces_nothing():
    fit(LOGISTIC.given(X, Y), MAP())
    other = Model({"b": free(), "w": dist.Normal(0.0, 2.0).expand([4])}, bernoulli).given(X[::-1], 1 - Y)
    CALLS.clear()
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fit(other, MAP(), key=3)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not CALLS
    assert not compiled


def test_dear_matrices_are_approached_by_products(monkeypatch):
    target = LOGISTIC.given(X, Y)
    plain = fit(target, MAP())
    monkeypatch.setattr(objective, "EXPENSIVE", 0.0)
    dear = fit(target, MAP())
    assert dear.info["num_hessians"] <= 2 < plain.info["num_hessians"]
    np.testing.assert_allclose(dear.mean()["w"], plain.mean()["w"], rtol=1e-8, atol=1e-10)


EIGHT_SCHOOLS = Model(
    {
        "mu": dist.Normal(0.0, 5.0),
        "tau": dist.HalfCauchy(5.0),
        "theta": lambda mu, tau: dist.Normal(mu, tau).expand([8]),
    },
    lambda params, x: dist.Normal(params["theta"], x),
)
SCHOOLS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), np.array([28.0, 8, -3, 7, -1, 1, 18, 12])


@pytest.mark.parametrize(
    ("model", "data", "figure", "name"),
    [
        (EIGHT_SCHOOLS, SCHOOLS, "mode_on_boundary", "tau is"),
        (Model({"rate": dist.Exponential(1.0)}, None), (), "mode_on_boundary", "rate is"),
        (Model({"shape": dist.Gamma(0.5, 1.0)}, None), (), "mode_on_boundary", "shape is"),
        (Model({"w": free(4), "b": free()}, bernoulli), (X, (X[:, 0] > 0).astype(int)), "mode_at_infinity", "w[0] is"),
    ],
    ids=["hierarchical scale", "density flat at the boundary", "density infinite at the boundary", "separable"],
)
def test_no_mode_is_failed_and_named(model, data, figure, name):
    posterior = fit(model.given(*data), MAP())
    assert posterior.verdict.status == "failed"
    assert posterior.verdict.figures[figure] == 1
    assert any(sentence.startswith(name) for sentence in posterior.verdict.sentences)


def test_ridge_of_modes_is_failed_and_named():
    x = np.column_stack([X[:, 0], X[:, 1], X[:, 1], X[:, 3]])  # two columns alike
    posterior = fit(Model({"w": free(4), "b": free()}, bernoulli).given(x, Y), MAP())
    assert posterior.verdict.status == "failed"
    assert posterior.verdict.figures["min_curvature"] == 0
    assert any("flat" in sentence and "w[" in sentence for sentence in posterior.verdict.sentences)


# minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [MAP(batch_size=50, num_steps=3_000), MAP(optimiser=optax.adam(0.02), num_steps=1_500)],
    ids=["minibatches", "full data by optax"],
)
def test_first_order_agrees_with_second_order(method):
    target = LOGISTIC.given(X / [1.0, 5.0, 0.2, 1.0], Y)
    exact, posterior = fit(target, MAP()), fit(target, method, key=1)
    # the figure is the distance to the mode in posterior standard deviations
    distance = posterior.verdict.figures["gradient_norm"]
    assert distance < 0.1
    gain = exact.info["log_density"] - posterior.info["log_density"]
    np.testing.assert_allclose(gain, 0.5 * distance**2, rtol=0.1, atol=1e-9)
    assert posterior.info["num_gradients"] == method.num_steps + 1
    assert (FIRST_ORDER in posterior.verdict.sentences) == (distance > 1e-6)
    assert FIRST_ORDER not in exact.verdict.sentences


def test_each_epoch_has_each_row_once_in_an_order_of_its_own():
    """Steps too short to matter tell the sums of their batches: of rows 1, 2, 4 and 8 which they were."""
    target = Model({"m": free()}, per_row_mean).given(y=np.array([1.0, 2.0, 4.0, 8.0])).flat()
    descent, key = optax.sgd(1e-9), jax.random.key(0)
    with double():
        paths = [ascend(target, descent, 2, n, key, np.zeros(1), Options()).position[0] for n in range(1, 17)]
    sums = np.diff([0.0, *paths]).reshape(8, 2) / (2 * 1e-9)
    np.testing.assert_allclose(sums.sum(axis=1), 15.0, atol=1e-4)
    assert len(np.unique(np.round(sums[:, 0]))) > 2


def test_minibatches_follow_the_key():
    target = LOGISTIC.given(X, Y)
    first, again, other = (fit(target, MAP(batch_size=50, num_steps=40), key=key).mean()["w"] for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def per_row(params, x):
    return dist.Normal(params["w"], 1.0)


@pytest.mark.parametrize(
    ("target", "method", "match"),
    [
        (Model({"w": dist.Normal(0.0, 1.0).expand([3])}, per_row).given(None, np.zeros(3)), MAP(batch_size=2), "index"),
        (Model({"w": dist.Normal(0.0, 1.0)}, None).given(), MAP(batch_size=2), "no data"),
        (LOGISTIC.given(X, Y), MAP(num_steps=0), "num_steps is 0"),
    ],
    ids=["parameter a row", "no data", "no steps"],
)
def test_refusals(target, method, match):
    with pytest.raises(CredoError, match=match):
        fit(target, method)


def test_steps_that_run_away_end_at_the_last_finite_position():
    target = Model({"x": dist.Normal(0.0, 1e-3)}, None).given()
    posterior = fit(target, MAP(optimiser=optax.sgd(1e3), num_steps=2_000))
    assert posterior.verdict.status == "failed"
    assert "not finite at update" in posterior.verdict.sentences[0]
    assert 1e100 < np.abs(posterior.mean()["x"]) < np.inf


ROOT = Model({"b": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(jnp.log(5.0 + params["b"] * x), 0.1))
ROOT_X = np.r_[np.linspace(0.1, 1.0, 59), -2.0]  # of b > 2.5 the last row has no likelihood
ROOT_TARGET = ROOT.given(ROOT_X, np.r_[np.log(5.0 + 4.0 * ROOT_X[:-1]), -6.0])  # and all of them draw b there


def end_before(batch_size, at):
    """Where updates end whose last has seen a finite density."""
    with double():
        flat, settings = ROOT_TARGET.flat().cast(np.float64), (jax.random.key(0), np.zeros(1), Options())
        before = ascend(flat, default_optimiser(flat, 500), batch_size, at - 1, *settings)
    assert not before.failure
    return before.position


def test_where_an_update_is_not_finite_the_last_finite_density_is_kept():
    posterior = fit(ROOT_TARGET, MAP(optimiser=default_optimiser(ROOT_TARGET, 500), num_steps=500), start={"b": 0.0})
    at, said = posterior.info["failed_at"], posterior.verdict.sentences
    assert posterior.verdict.status == "failed"
    assert len(said) == 1
    assert f"not finite at update {at + 1}: " in said[0]
    assert 2.0 < posterior.mean()["b"] <= 2.5
    np.testing.assert_array_equal(posterior.kind.position, end_before(None, at))


def test_an_optimiser_made_for_gradients_that_are_no_numbers_goes_on():
    quick = optax.adam(optax.cosine_decay_schedule(0.5, 900))
    target = ROOT.given(np.r_[ROOT_X[:-1], -1.2], np.r_[np.log(5.0 + 4.0 * ROOT_X[:-1]), np.log(0.2)])
    with double():
        flat = target.flat().cast(np.float64)
        lost = [
            ascend(flat, each, 20, 900, jax.random.key(0), np.zeros(1), Options())
            for each in (quick, optax.chain(optax.zero_nans(), quick))
        ]
    assert lost[0].failure
    assert not lost[1].failure
    np.testing.assert_allclose(lost[1].position, 4.0, atol=0.01)


def test_rows_without_an_outcome_are_counted_where_they_are_named():
    x = np.r_[np.zeros(20), ROOT_X]
    y = np.r_[np.full(20, np.nan), np.asarray(ROOT_TARGET.y)]
    posterior = fit(ROOT.given(x, y, missing="drop"), MAP(batch_size=20, num_steps=500), start={"b": 0.0})
    whole = fit(ROOT_TARGET, MAP(batch_size=20, num_steps=500), start={"b": 0.0})
    assert "is nan in 1 of 60 rows (row 59)" in whole.verdict.sentences[1]
    assert "is nan in 1 of 60 rows (row 79)" in posterior.verdict.sentences[1]
    rows, others = (
        [int(each) for each in said.split("rows ")[1].split(" …")[0].split(", ")]
        for said in (whole.verdict.sentences[0], posterior.verdict.sentences[0])
    )
    assert others == [row + 20 for row in rows]


def test_of_minibatches_the_rows_are_named(tmp_path):
    posterior = fit(ROOT_TARGET, MAP(batch_size=20, num_steps=500), start={"b": 0.0}, checkpoint=tmp_path / "run")
    at, said = posterior.info["failed_at"], posterior.verdict.sentences
    rows = np.asarray(_order(jax.random.key(0), at // 3, 60)).reshape(3, 20)[at % 3]
    assert 59 in rows
    assert f"update {at + 1} (epoch {at // 3 + 1}, batch {at % 3 + 1} of 3: rows {rows[0]}, {rows[1]}, " in said[0]
    np.testing.assert_array_equal(posterior.kind.position, end_before(20, at))
    again = resume(tmp_path / "run", ROOT_TARGET)
    np.testing.assert_array_equal(again.kind.position, posterior.kind.position)
    assert again.verdict == posterior.verdict


def test_where_the_density_is_no_number_at_the_start_the_search_begins_elsewhere():
    target = Model.from_log_density(
        lambda params: jnp.where(params["a"] > 1, -0.5 * (params["a"] - 3) ** 2, jnp.nan), {"a": constraints.real}
    ).given()
    posterior = fit(target, MAP())
    assert posterior.verdict.status == "pass"
    np.testing.assert_allclose(posterior.mean()["a"], 3.0)


def test_start_without_a_finite_density_is_explained():
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] + np.nan, 1.0))
    with pytest.raises(CredoError, match="y is nan"):
        fit(model.given(None, np.zeros(3)), MAP())


@pytest.mark.parametrize("method", [MAP(), MAP(optimiser=optax.adam(1e-3)), MAP(batch_size=10), MAP(num_steps=300)])
def test_a_time_limit_ends_the_ascent_and_is_said(method):
    """Far classes: the mode is many steps away, and no claim is made about where the ascent would have ended."""
    posterior = fit(LOGISTIC.given(X, Y), method, time_limit=1e-9, progress=False)
    assert not posterior.info["is_complete"]
    assert posterior.verdict.status != "pass"
    assert any("time limit" in sentence for sentence in posterior.verdict.sentences)
    assert posterior.verdict.figures["mode_at_infinity"] == 0
    assert np.all(np.isfinite(posterior.mean()["w"]))


@pytest.mark.parametrize("method", [MAP(), MAP(optimiser=optax.adam(0.05), num_steps=4_000)])
def test_a_mode_at_infinity_is_one_beside_parameters_that_have_theirs(method):
    """Gradients leave a little of a step along these, which a million times as long is far into their prior's tail."""
    prior = {"w": dist.ImproperUniform(constraints.real_vector, (), (4,)), "c": dist.Normal(0.0, 1.0)}
    model = Model(prior, lambda p, x: dist.Bernoulli(logits=x @ p["w"] + p["c"]))
    posterior = fit(model.given(X, (X[:, 0] > 0).astype(int)), method, key=0, progress=False)
    assert posterior.verdict.figures["mode_at_infinity"] == 1


@pytest.mark.parametrize("method", [MAP(num_steps=5), MAP(optimiser=optax.adam(0.05), num_steps=200)])
@pytest.mark.parametrize("sd", [30.0, 3_000.0])
def test_a_search_cut_short_under_a_proper_prior_is_not_on_its_way_to_infinity(method, sd):
    """Separable classes: ten times further out the density is higher still, and the prior tells beyond."""
    model = Model({"w": dist.Normal(0.0, sd).expand([4])}, lambda p, x: dist.Bernoulli(logits=x @ p["w"]))
    cut = fit(model.given(X, (X[:, 0] > 0).astype(int)), method, key=0)
    assert cut.verdict.figures["mode_at_infinity"] == 0
    assert cut.verdict.status == "failed"
    assert fit(model.given(X, (X[:, 0] > 0).astype(int)), MAP(), key=0).verdict.status == "pass"


def test_updates_do_not_depend_on_the_time_limit():
    method = MAP(batch_size=50, num_steps=200)
    limited, whole = (
        fit(LOGISTIC.given(X, Y), method, time_limit=seconds, progress=False) for seconds in (300.0, None)
    )
    assert limited.info["num_gradients"] == whole.info["num_gradients"]
    np.testing.assert_array_equal(limited.mean()["w"], whole.mean()["w"])


def softmax(params, x):
    return dist.Categorical(logits=x @ params["w"])


def test_in_hundreds_of_dimensions_products_come_before_matrices():
    """From zero Newton's steps overshoot some twenty times: with a matrix and its spectrum each, seconds are lost."""
    x = RNG.normal(size=(300, 50))
    y = np.argmax(x[:, :6] + RNG.gumbel(size=(300, 6)), axis=1)
    model = Model({"w": dist.Normal(0.0, 1.0).expand([50, 6])}, softmax)
    posterior = fit(model.given(x, y), MAP(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["gradient_norm"] < 1e-8
    assert posterior.info["num_hessians"] <= 3
