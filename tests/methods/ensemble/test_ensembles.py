"""Ensembles and SWAG: members reach the modes they should, widths follow their formulas, faults are said."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from scipy.special import logsumexp

import credo
from credo.methods.ensemble.snapshots import cycling_adam
from credo.methods.ensemble.swag import gaussian_of
from credo.methods.optimise import members
from credo.methods.optimise.starts import fresh_positions
from credo.methods.optimise.surprise import surprise
from credo.nn import BayesianNetwork, Bernoulli, Categorical, Gaussian
from credo.posterior.kinds import Draws
from credo.precision import double

RANDOM = np.random.default_rng(0)
N = 512
X = RANDOM.normal(size=(N, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.5 * RANDOM.normal(size=N)
PRECISION = X.T @ X / 0.25 + np.eye(3)
MEAN = np.linalg.solve(PRECISION, X.T @ Y / 0.25)
SD = np.sqrt(np.diag(np.linalg.inv(PRECISION)))


def line(w, x):
    return x @ w


def two_layers(p, x):
    return jnp.tanh(x @ p["in"]) @ p["out"]


def linear(params=None) -> credo.Target:
    weights = np.array([0.3, -0.1, 0.2]) if params is None else params
    return BayesianNetwork(line, weights, head=Gaussian(0.5)).given(X, Y)


def tanh_network() -> credo.Target:
    params = {"in": RANDOM.normal(size=(3, 4)), "out": RANDOM.normal(size=(4,))}
    return BayesianNetwork(two_layers, params, head=Gaussian()).given(X, Y)


def positions(posterior) -> np.ndarray:
    return posterior.kind.positions[0]


# members ----------------------------------------------------------------------------------------


def test_every_member_reaches_the_only_mode():
    posterior = credo.fit(linear(), credo.DeepEnsemble(members=3), key=1, progress=False)
    assert positions(posterior).shape == (3, 3)
    assert np.all(np.abs(positions(posterior) - MEAN) < 0.1 * SD)
    assert posterior.info["num_gradients"] == 3 * 2_000
    assert posterior.verdict.status == "doubtful"
    assert any("no sample of the posterior" in sentence for sentence in posterior.verdict.sentences)


def test_members_of_a_network_differ_and_agree_on_the_data():
    target = tanh_network()
    posterior = credo.fit(target, credo.DeepEnsemble(members=3, num_steps=3_000), key=2, progress=False)
    w = positions(posterior)
    assert np.min(np.linalg.norm(w[:, None] - w, axis=-1)[np.triu_indices(3, 1)]) > 0.5
    predictive = posterior.predict(X[:50])
    assert np.mean(predictive.epistemic) < 0.1 * np.mean(predictive.variance)


def test_groups_that_memory_asks_for_change_nothing(monkeypatch):
    target = tanh_network()
    method = credo.DeepEnsemble(members=3, num_steps=50)
    together = credo.fit(target, method, key=3, progress=False)
    sizes, begin = [], members._begin
    monkeypatch.setattr(members, "MEMORY", 1)
    monkeypatch.setattr(members, "_begin", lambda optimiser, u: sizes.append(len(u)) or begin(optimiser, u))
    apart = credo.fit(target, method, key=3, progress=False)
    assert sizes == [1, 1, 1]
    np.testing.assert_allclose(positions(together), positions(apart), rtol=1e-10)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_time_limit_leaves_the_members_that_have_begun(monkeypatch, is_apart):
    if is_apart:
        monkeypatch.setattr(members, "MEMORY", 1)
    method = credo.DeepEnsemble(3, num_steps=10**8)
    posterior = credo.fit(tanh_network(), method, key=0, time_limit=0.5, progress=False)
    assert posterior.info["is_complete"] is False
    assert len(positions(posterior)) == (1 if is_apart else 3)
    said = posterior.verdict.sentences[0]
    assert said.startswith("The time limit of 0.5 s came after")
    assert ("before 2 more members had begun" in said) == is_apart
    assert np.isfinite(posterior.predict(X).mean).all()


def test_a_last_group_that_the_time_limit_cut_off_is_said(monkeypatch):
    train, done = members._train, iter([20, 4])
    monkeypatch.setattr(members, "MEMORY", 1)
    monkeypatch.setattr(members, "_train", lambda *args: train(*args)._replace(num_updates=next(done)))
    method = credo.DeepEnsemble(2, num_steps=20)
    posterior = credo.fit(linear(), method, key=0, time_limit=600, progress=False)
    assert posterior.info["is_complete"] is False
    assert "The time limit of 600 s came after 4 of 20 updates of the last members:" in posterior.verdict.sentences[0]


def test_a_time_limit_names_the_folder_that_keeps_the_run_and_the_setting_that_makes_it_shorter():
    for method, settings in {
        credo.SWAG(num_steps=0, num_snapshots=2, every=10**8): "num_snapshots or every",
        credo.StochasticWeightSnapshots(num_steps=10**8): "num_steps",
    }.items():
        remedy = rf"raise time_limit \(with checkpoint= it could be continued\), or lower {settings}\."
        with pytest.raises(credo.CredoError, match=remedy):
            credo.fit(tanh_network(), method, key=0, time_limit=0.3, progress=False)


def test_members_are_modes_in_the_space_of_the_user():
    """Of Gamma(3, 2): 1, where the density of its logarithm has 1.5."""
    target = credo.Model({"x": dist.Gamma(3.0, 2.0)}, None).given()
    posterior = credo.fit(target, credo.DeepEnsemble(members=2), progress=False)
    assert float(posterior.mean()["x"]) == pytest.approx(1.0, abs=1e-3)


def test_members_begin_where_init_says():
    method = credo.DeepEnsemble(
        members=2, init=lambda key: jnp.full(3, 7.0), num_steps=1, optimiser=optax.sgd(1e-12), batch_size=None
    )
    np.testing.assert_allclose(positions(credo.fit(linear(), method, progress=False)), 7.0, atol=1e-6)
    named = credo.DeepEnsemble(
        members=1, init=lambda key: {"weights": jnp.full(3, 5.0)}, num_steps=1, optimiser=optax.sgd(1e-12)
    )
    np.testing.assert_allclose(positions(credo.fit(linear(), named, progress=False)), 5.0, atol=1e-6)


def test_members_that_begin_alike_see_the_data_in_orders_of_their_own():
    method = credo.DeepEnsemble(members=2, init=lambda key: jnp.zeros(3), num_steps=3, batch_size=32)
    first, second = positions(credo.fit(linear(), method, progress=False))
    assert np.all(first != second)


def test_fresh_starts_keep_the_scale_of_each_array():
    params = {"w": np.random.default_rng(1).normal(scale=0.2, size=(3, 400)), "b": np.zeros(400), "v": np.ones(400)}
    network = BayesianNetwork(lambda p, x: (x @ p["w"] + p["b"]) @ p["v"], params, head=Gaussian(0.5))
    target = network.given(X, Y).flat()
    w = network.prior.leaves(target.constrain(jnp.asarray(fresh_positions(target, 1, None, np.zeros(2, np.uint32))[0])))
    assert np.std(w["weights.w"]) == pytest.approx(0.2, rel=0.1)
    assert not np.array_equal(w["weights.w"], params["w"])
    np.testing.assert_array_equal(w["weights.b"], 0.0)
    np.testing.assert_array_equal(w["weights.v"], 1.0)


def test_fresh_starts_keep_gains_that_were_trained_near_one():
    params = {"gain": 1 + 0.05 * np.random.default_rng(2).normal(size=500)}
    target = BayesianNetwork(lambda p, x: x[:, 0] * p["gain"].mean(), params, head=Gaussian(0.5)).given(X, Y).flat()
    members = fresh_positions(target, 2, None, np.zeros(2, np.uint32))
    assert np.all(np.abs(members.mean(axis=1) - 1) < 0.02)
    assert np.all(np.abs(members.std(axis=1) - 0.05) < 0.01)


@pytest.mark.parametrize("value", [0.0, 0.1])  # the mean of three 0.1 is not 0.1
def test_members_of_a_network_that_begins_at_one_value_are_not_one(value):
    target = BayesianNetwork(line, np.full(3, value), head=Gaussian(0.5)).given(X, Y).flat()
    assert np.std(fresh_positions(target, 5, None, np.zeros(2, np.uint32)), axis=0).min() > 0.01


def test_a_member_whose_gradient_fails_stays_and_says_so():
    """The density is no number beyond u = 1, where its gradient leads."""

    def log_density(params):
        u = params["u"]
        return jnp.where(u > 1.0, jnp.nan, 3.0 * u)

    target = credo.Model.from_log_density(log_density, {"u": constraints.real}).given()
    method = credo.DeepEnsemble(
        members=2,
        init=lambda key: {"u": jnp.asarray(0.5)},
        optimiser=optax.sgd(0.01),
        num_steps=100,
    )
    posterior = credo.fit(target, method, progress=False)
    assert np.all(positions(posterior) <= 1.0 + 0.04)
    assert np.all(np.isfinite(positions(posterior)))
    assert np.all(posterior.info["failed_at"] > 5)
    assert any("loss or its gradient was not finite in member" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("method", [credo.DeepEnsemble(2, batch_size=32), credo.MCDropout(batch_size=32)])
def test_a_row_at_fault_is_named_and_no_step_size(method):
    """Members whose first batches missed it trained on, and one stayed at its random start, with equal weight."""
    x = np.random.default_rng(1).normal(size=(300, 3)).clip(-3, 3)
    x[-1, 0] = -5.0
    network = BayesianNetwork(lambda p, x: jnp.sqrt(3.5 + x) @ p["w"], {"w": np.ones((3, 2))}, head=Categorical())
    with pytest.raises(credo.CredoError, match=r"nan in 1 of 300 rows \(row 299\)"):
        credo.fit(network.given(x, np.arange(300) % 2), dataclasses.replace(method, num_steps=60), progress=False)


@pytest.mark.parametrize(
    "method",
    [
        credo.DeepEnsemble(2, optimiser=optax.sgd(50.0), num_steps=200),
        credo.MCDropout(optimiser=optax.sgd(50.0), num_steps=200),
        credo.SWAG(num_steps=200, step_size=100.0),
    ],
    ids=lambda method: type(method).__name__,
)
def test_training_that_ran_away_has_failed(method):
    """Its prior is proper, and 1e150 no answer to be doubted; an ensemble was told of an improper posterior."""
    x = np.random.default_rng(0).normal(size=(1_000, 3))
    params = {"a": np.random.default_rng(1).normal(size=(3, 8)), "b": np.full((8, 1), 0.4)}
    network = BayesianNetwork(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params, head=credo.nn.Gaussian(0.1))
    target = network.given(x, x[:, 0])
    verdict = credo.fit(target, method, key=0, progress=False).verdict
    assert verdict.status == "failed"
    told = "nothing can be predicted", "Training took", "was not finite"
    assert any(each in sentence for sentence in verdict.sentences for each in told)
    assert not any("improper" in sentence for sentence in verdict.sentences)


def test_a_replicate_without_a_density_is_no_failure_of_training():
    """Of gamma outcomes of shape 0.01 some underflow to zero, at which there is none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = np.maximum(np.exp(np.log(rng.gamma(1.01, size=300)) + np.log(rng.uniform(size=300)) / 0.01), 1e-290)
    params = {"a": 0.3 * rng.normal(size=(2, 4)), "b": np.zeros((4, 1))}
    network = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"],
        params,
        head=lambda out: dist.Gamma(0.01 * jnp.exp(0.05 * jnp.tanh(out[..., 0])), 1.0),
    )
    verdict = credo.fit(network.given(x, y), credo.DeepEnsemble(2, num_steps=200), key=0, progress=False).verdict
    assert verdict.status == "doubtful"


def test_snapshots_are_the_ends_of_cycles():
    posterior = credo.fit(linear(), credo.StochasticWeightSnapshots(cycles=4, num_steps=2_000), key=4, progress=False)
    assert positions(posterior).shape == (4, 3)
    assert np.all(np.abs(positions(posterior) - MEAN) < SD)
    assert len(np.unique(positions(posterior)[:, 0])) == 4


def test_snapshots_begin_at_a_start_that_was_given():
    method = credo.StochasticWeightSnapshots(cycles=1, num_steps=1, step_size=1e-9)
    posterior = credo.fit(linear(), method, start={"weights": np.full(3, 7.0)}, progress=False)
    np.testing.assert_allclose(positions(posterior), 7.0, atol=1e-6)


def test_steps_fall_to_zero_in_each_cycle():
    """Adam's updates under a constant gradient are as long as its steps."""
    optimiser = cycling_adam(0.1, 4, 3)
    with double():
        state, steps = optimiser.init(jnp.zeros(1)), []
        for _ in range(12):
            update, state = optimiser.update(jnp.ones(1), state)
            steps.append(-float(update[0]))
    np.testing.assert_allclose(steps, np.tile(0.05 * (1 + np.cos(np.pi * np.arange(4) / 4)), 3), rtol=1e-6)


# widths ----------------------------------------------------------------------------------------


def test_failures_of_training_and_of_the_path_are_both_told():
    target, blank = linear().flat(), np.zeros((2, 3))
    training, path = (
        members.Trained(blank, blank[:, None], np.array(failed_at), 10, blank, blank)
        for failed_at in ([5, -1], [-1, 7])
    )
    with double():
        kind = gaussian_of(RANDOM.normal(size=(4, 3)), MEAN, SD**2)
        posterior = credo.SWAG().answer(kind, target, [training, path], [], np.zeros(2, np.uint32))
    np.testing.assert_array_equal(posterior.info["failed_at"], [5, 7])
    assert [at for at in (6, 8) if any(f"(update {at})" in each for each in posterior.verdict.sentences)] == [6, 8]


def test_the_moments_of_a_path():
    path = np.random.default_rng(2).normal(size=(30, 5))
    with double():
        found = jax.tree.map(np.asarray, gaussian_of(path[-10:], path.mean(axis=0), path.var(axis=0)))
    last = path[-10:] - path.mean(axis=0)
    expected = 0.5 * np.diag(path.var(axis=0)) + 0.5 * last.T @ last / 9
    np.testing.assert_allclose(found.mean, path.mean(axis=0))
    with double():
        np.testing.assert_allclose(found.scale.dense(), expected, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_swag_has_the_posteriors_width_where_the_theory_holds(momentum):
    """A linear model: the noise of the gradients is in proportion to the curvature, to first order in M / N."""
    method = credo.SWAG(num_snapshots=400, rank=200, batch_size=32, momentum=momentum)
    posterior = credo.fit(linear(), method, key=5, progress=False)
    ratio = posterior.sd()["weights"] / SD
    assert np.all(np.abs(np.log(ratio)) < 0.3), ratio
    assert np.all(np.abs(posterior.mean()["weights"] - MEAN) < 0.6 * SD)
    assert any("width of SWAG" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_constant_steps_of_gradient_ascent_sample_a_linear_model(temperature):
    method = credo.ConstantSGD(batch_size=16, temperature=temperature)
    posterior = credo.fit(linear(), method, key=6, progress=False)
    ratio = posterior.sd()["weights"] / (SD * np.sqrt(temperature))
    assert np.all(np.abs(np.log(ratio)) < 0.25), ratio
    assert posterior.verdict.status == "doubtful"
    assert any("sds of correlated parameters are too small" in each for each in posterior.verdict.sentences)


def test_several_swags_are_a_mixture():
    method = credo.MultiSWAG(members=2, swag=credo.SWAG(num_snapshots=10, num_steps=500))
    posterior = credo.fit(linear(), method, key=7, progress=False)
    assert len(posterior.kind.components) == 2  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.exp(posterior.kind.log_weights), 0.5)  # type: ignore[attr-defined]
    assert np.all(np.abs(posterior.mean()["weights"] - MEAN) < SD)
    assert np.isfinite(posterior.log_prob({"weights": MEAN}))
    # training, the path, and what the width of its steps took
    assert posterior.info["num_gradients"] == 2 * (500 + 10 * (N // 128) + 64 + 20)
    as_given = dataclasses.replace(method.swag, step_size=1e-3, num_steps=0)
    assert credo.fit(linear(), as_given, key=7, progress=False).info["num_gradients"] == 10 * (N // 128)


def test_the_step_of_several_swags_is_stable_for_each():
    """Of the slope exp(w) a step that is right at exp(−3) is e¹² times too long at exp(3)."""
    starts = iter([-3.0, 3.0])
    network = BayesianNetwork(lambda w, x: jnp.exp(w) * x[:, 0], np.zeros(()), head=Gaussian(0.5))
    method = credo.MultiSWAG(
        members=2,
        swag=credo.SWAG(num_steps=0, num_snapshots=4, every=5, rank=2),
        init=lambda key: np.asarray(next(starts)),
    )
    posterior = credo.fit(network.given(X, X[:, 0]), method, key=7, progress=False)
    assert all(abs(float(part.mean[0])) < 4 for part in posterior.kind.components)  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", [credo.DeepEnsemble(), credo.MultiSWAG(), credo.SMC()])
def test_a_start_that_would_not_be_used_is_refused(method):
    """The weights that a network has as its start are no order to these."""
    with pytest.raises(credo.CredoError, match=r"begins .*: leave start out"):
        credo.fit(linear(), method, start={"weights": np.zeros(3)}, progress=False)


# requests that cannot be answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (credo.SWAG(batch_size=N), "all of the 512 rows"),
        (credo.SWAG(momentum=1.0), "momentum in \\[0, 1\\)"),
        (credo.SWAG(step_size=-0.1), "step_size > 0"),
        (credo.StochasticWeightSnapshots(step_size=0.0), "step_size is 0"),
        (credo.DeepEnsemble(members=0), "1 or more"),
        (credo.DeepEnsemble(init=lambda key: jnp.ones(4)), "init\\(key\\) gives 4 numbers, and the model has 3"),
        (credo.ConstantSGD(control_variates=True), "leave control_variates out"),
        (credo.ConstantSGD(batch_size=None), "noise of minibatches"),
    ],
)
def test_wrong_settings_are_said(method, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(linear(), method, progress=False)


def test_a_start_without_a_finite_density_is_said():
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"], 0.0 * x))
    with pytest.raises(credo.CredoError):
        credo.fit(model.given(np.ones(4), np.ones(4)), credo.DeepEnsemble(batch_size=None, num_steps=5), progress=False)


@pytest.mark.parametrize("method", [credo.DeepEnsemble(num_steps=2_000), credo.SWAG(num_steps=300, batch_size=16)])
def test_data_that_surprise_the_predictive_are_said(method):
    """A noise that is ten times too small; with the right one nothing is said."""
    for noise, is_surprised in ((0.05, True), (0.5, False)):
        network = BayesianNetwork(line, np.array([0.3, -0.1, 0.2]), head=Gaussian(noise))
        verdict = credo.fit(network.given(X, Y), method, progress=False).verdict
        assert (verdict.figures["surprise"] > 0.1) == is_surprised
        assert any("than the predictive expects" in sentence for sentence in verdict.sentences) == is_surprised


@pytest.mark.parametrize("is_binary", [True, False])
def test_the_surprise_of_classes_is_that_of_their_probabilities(is_binary):
    """One draw of the weights: −log p(y) and its expectation in closed form, less three standard errors."""
    w = np.array([1.0, -0.5, 0.2]) if is_binary else RANDOM.normal(size=(3, 4))
    target = BayesianNetwork(line, w, head=Bernoulli() if is_binary else Categorical())
    logits = np.stack([np.zeros(N), X @ w], axis=1) if is_binary else X @ w
    y = np.argmin(logits, axis=1)  # the least likely
    target = target.given(X, y).flat()
    with double():
        posterior = credo.Posterior(Draws(w.reshape(1, 1, -1)), target, verdict=credo.Verdict("pass"))
        found = surprise(posterior, np.zeros(2, np.uint32), is_linearised=False)
    logs = logits - logsumexp(logits, axis=1, keepdims=True)
    excess = np.sum(np.exp(logs) * logs, axis=1) - logs[np.arange(N), y]
    assert found == pytest.approx(np.mean(excess) - 3 * np.std(excess) / np.sqrt(N), rel=1e-6)


def test_rows_without_weight_surprise_nobody():
    spoilt = np.where(np.arange(N) % 2, Y, Y + 50.0)
    network = BayesianNetwork(line, np.array([0.3, -0.1, 0.2]), head=Gaussian(0.5))
    target = network.given(X, spoilt, weights=np.arange(N) % 2)
    verdict = credo.fit(target, credo.DeepEnsemble(members=2, num_steps=2_000), progress=False).verdict
    assert verdict.figures["surprise"] < 0.1


def test_members_that_no_step_could_bring_to_a_mode_are_said():
    """2,000 steps of Adam that fall from 0.01 to zero add up to 10."""
    model = credo.Model({"a": dist.Normal(0.0, 100.0)}, lambda params, x: dist.Normal(params["a"], 1.0).expand([20]))
    far, near = (
        credo.fit(model.given(y=centre + RANDOM.normal(size=20)), credo.DeepEnsemble(members=2), key=0)
        for centre in (50.0, 0.5)
    )
    assert np.all(np.abs(positions(far) - 50.0) > 20)
    assert "on their way yet, and no modes" in far.verdict.sentences[0]
    np.testing.assert_allclose(positions(near), np.mean(near.target.y), atol=0.05)
    assert not any("on their way" in sentence for sentence in near.verdict.sentences)


@pytest.mark.slow
def test_a_path_too_narrow_for_its_batches_says_so():
    """With most rows in a batch gradients hardly differ, and steps large enough for the posterior's width diverge."""
    random = np.random.default_rng(0)
    x = random.normal(size=(143, 4))
    y = np.sin(x[:, 0]) + 0.3 * random.normal(size=143)
    params = {"in": random.normal(size=(4, 10)) / 2, "bias": np.zeros(10), "out": random.normal(size=10) / 3}

    def network(params, x):
        return jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"]

    target = credo.nn.BayesianNetwork(network, params, head=credo.nn.Gaussian(0.3)).given(x, y)
    said = []
    for size in (128, 4):
        method = credo.SWAG(batch_size=size, num_steps=500, num_snapshots=10, rank=5)
        verdict = credo.fit(target, method, key=0, progress=False).verdict
        said.append([sentence for sentence in verdict.sentences if "The path is narrower than" in sentence])
    assert "batches of 128 of the 143 rows" in said[0][0]
    assert float(said[0][0].split("with about ")[1].split()[0]) < 0.02  # 0.1 of it is left by the batches alone
    assert not said[1]


def test_members_of_multiswag_that_are_trained_are_not_trained_again():
    trained = {"w": np.array([1.0, -1.0, 0.5])}
    x = np.random.default_rng(0).normal(size=(200, 3))
    network = credo.nn.BayesianNetwork(lambda p, x: x @ p["w"], trained, head=credo.nn.Gaussian(0.5))
    y = x @ trained["w"] + 0.5 * np.random.default_rng(1).normal(size=200)
    swag = credo.SWAG(num_steps=0, num_snapshots=5, rank=2, batch_size=32)
    one = credo.fit(network.given(x, y), swag, key=0)
    two = credo.fit(network.given(x, y), credo.MultiSWAG(members=2, swag=swag, init=lambda key: trained), key=0)
    assert two.info["num_gradients"] == 2 * one.info["num_gradients"] < 1_000
