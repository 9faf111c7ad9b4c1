"""What ``fit`` and a posterior take from a user, and what they answer where it cannot be used."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import CredoError, Model
from credo.arguments import as_key
from credo.methods.settings import check_settings
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from interrupted import obeying_ctrl_c

X = np.random.default_rng(0).normal(size=(20, 2))


def line(params, x):
    return dist.Normal(x @ params["w"], params["sd"])


MODEL = Model({"w": dist.Normal(0.0, 1.0).expand([2]), "sd": dist.HalfNormal(1.0)}, line)
TARGET = MODEL.given(X, X @ np.array([1.0, -1.0]) + np.cos(np.arange(20.0)))


def test_starts_from_parameters():
    """Lists stand for arrays."""
    found = credo.fit(TARGET, credo.Laplace(), start={"w": [0, 0], "sd": 1.0})
    np.testing.assert_allclose(found.mean()["w"], credo.fit(TARGET, credo.Laplace()).mean()["w"], atol=1e-6)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"w": [0.0, 0.0]}, "lack 'sd'"),
        ({"w": [0.0, 0.0, 0.0], "sd": 1.0}, r"'w' the shape \(3,\); in the model it has \(2,\)"),
        ({"w": [0.0, 0.0], "sd": -1.0}, "'sd' a value that is not finite or not inside its support"),
        ({"w": ["a", "b"], "sd": 1.0}, "'w' the value .*: give numbers"),
        ({"w": [0.0, 0.0], "sd": 1.0, "s": 2.0}, "start has 's', which is no parameter; the model has w, sd"),
        ("map", "start is a posterior"),
        (np.full(1, 2 + 1j), "start is a posterior"),
    ],
)
def test_refuses_a_start(start, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(TARGET, credo.Laplace(), start=start)


@pytest.mark.parametrize("tau", [-1.0, np.nan])
def test_refuses_a_start_at_which_another_prior_is_none(tau):
    prior = {"tau": dist.HalfNormal(1.0), "e": lambda tau: dist.Normal(0.0, tau).expand([4])}
    target = Model(prior, lambda params, x: dist.Normal(params["e"], 1.0)).given(y=np.ones(4))
    with pytest.raises(CredoError, match=rf"invalid scale parameter; it has tau \[ ?{tau:g}"):
        credo.fit(target, credo.NUTS(), start={"tau": tau, "e": np.zeros(4)}, progress=False)


def test_inputs_without_outcomes_are_doubtful():
    forgotten = credo.fit(MODEL.given(X), credo.Laplace())
    assert forgotten.verdict.status != "pass"
    assert any("20 rows of x were given and no outcomes" in sentence for sentence in forgotten.verdict.sentences)
    for target in (MODEL.given(), TARGET):
        assert not any("no outcomes" in sentence for sentence in credo.fit(target, credo.Laplace()).verdict.sentences)


def test_a_doubt_leaves_what_failed_as_it_is():
    modes = dist.MixtureSameFamily(dist.Categorical(np.full(2, 0.5)), dist.Normal(np.array([-50.0, 50.0]), 1.0))
    target = Model({"m": modes}, lambda params, x: dist.Normal(params["m"] + x[:, 0], 1.0)).given(X)
    start = np.array([[-50.0], [50.0]])
    posterior = credo.fit(target, credo.NUTS(chains=2, num_warmup=60, num_draws=80), start=start, progress=False)
    assert any("no outcomes" in sentence for sentence in posterior.verdict.sentences)
    assert posterior.verdict.status == "failed"


def test_rows_without_weight_do_not_count_beside_parameters():
    for num_rows, is_few in ((2, True), (3, False)):
        target = MODEL.given(X, X[:, 0] + np.cos(np.arange(20.0)), weights=(np.arange(20) < num_rows).astype(float))
        sentences = credo.fit(target, credo.Laplace()).verdict.sentences
        assert any("fewer rows (2) than parameters (3)" in sentence for sentence in sentences) == is_few


def test_a_start_may_hold_derived_quantities():
    """As the means of an earlier posterior do."""
    model = Model(
        {"m": dist.Normal(0.0, 1.0)},
        lambda params, x: dist.Normal(params["m"], 1.0),
        derived={"twice": lambda m: 2 * m},
    )
    target = model.given(y=np.ones(3))
    means = credo.fit(target, credo.Laplace()).mean()
    assert set(means) == {"m", "twice"}
    assert credo.fit(target, credo.Laplace(), start=means).mean()["m"] == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("start", [{"z": [1, 0.5]}, [1.0, 0.5], [[1.0, 0.0], [1.0, 0.5]]])
def test_refuses_a_discrete_start_between_its_values(start):
    """It was rounded without a word."""
    target = Model({"z": dist.Poisson(2.0).expand([2])}, lambda params, x: dist.Normal(params["z"], 1.0)).given(
        y=np.ones(2)
    )
    method = credo.Gibbs({"z": lambda key, params, data: params["z"]}, chains=2)
    with pytest.raises(CredoError, match=r"start gives z\[1\] the value 0.5, and that parameter is discrete"):
        credo.fit(target, method, start=start)


@pytest.mark.parametrize("key", ["a", 1.5, None, np.array(1.5), np.array([0.5, 1.5]), np.array([1, 2, 3])])
def test_refuses_what_is_no_key(key):
    with pytest.raises(CredoError, match="key is an int or a JAX key"):
        credo.fit(TARGET, credo.Laplace(), key=key)


def test_refuses_several_keys_and_one_that_is_too_large():
    with pytest.raises(CredoError, match=r"an array of \(2,\) keys: give one of them"):
        credo.fit(TARGET, credo.Laplace(), key=jax.random.split(jax.random.key(0), 2))
    with pytest.raises(CredoError, match="does not fit into 64 bits"):
        credo.fit(TARGET, credo.Laplace(), key=2**64 + 1)


@pytest.mark.slow
def test_one_key_in_many_forms():
    first, *others = (
        credo.fit(TARGET, credo.SMC(num_particles=64), key=key, progress=False).draws
        for key in (3, np.array(3), jnp.array(3), np.int64(3), jax.random.key(3), jax.random.PRNGKey(3))
    )
    for name, draws in first.items():
        for other in others:
            np.testing.assert_array_equal(other[name], draws)


@pytest.mark.parametrize("path", ["", "a\0b", 5, "a" * 300])
def test_refuses_what_is_no_path(path):
    posterior = credo.fit(TARGET, credo.Laplace(), progress=False)
    for use in (
        posterior.save,
        credo.load,
        lambda path: credo.fit(TARGET, credo.Laplace(), checkpoint=path),
        lambda path: credo.fit(TARGET, credo.NUTS(), checkpoint=path),
        lambda path: credo.resume(path, TARGET),
    ):
        with pytest.raises(CredoError, match=r"path|written|made|no file|no run|damaged"):
            use(path)
    with pytest.raises(CredoError, match=r"resume\(\) takes a Target"):
        credo.resume("folder", TARGET.model)


def test_within_a_traced_function():
    with pytest.raises(CredoError, match="y is being traced, by jax.jit, vmap or grad"):
        jax.jit(lambda scale: MODEL.given(X, scale * jnp.ones(20)))(1.0)
    with pytest.raises(CredoError, match="The key is being traced"):
        jax.vmap(lambda key: credo.fit(TARGET, credo.Laplace(), key=key))(jax.random.split(jax.random.key(0), 2))


def test_nobody_listens(monkeypatch):
    """Of a service, or under pythonw, there is no standard error."""
    monkeypatch.setattr("sys.stderr", None)
    credo.fit(TARGET, credo.NUTS(chains=1, num_warmup=20, num_draws=20), key=0)


def test_a_class_is_no_method():
    with pytest.raises(CredoError, match="with its brackets"):
        credo.fit(TARGET, credo.Laplace)  # type: ignore[arg-type]


def test_a_ready_model_of_coordinate_ascent_is_no_method():
    with pytest.raises(CredoError, match=r"call GaussianMixture\(…\).fit\(data\)"):
        credo.fit(TARGET, credo.vi.cavi.GaussianMixture(3))  # type: ignore[arg-type]


def test_large_ints_are_keys_of_their_own():
    """Whatever JAX's setting: without its 64-bit mode 2**40 would be cut off to 0."""
    posterior = credo.fit(TARGET, credo.Laplace())
    zero, large = (posterior.sample(key, 3)["sd"] for key in (0, 2**40))
    assert not np.allclose(zero, large)
    key = as_key(2**40)
    assert np.any(jax.random.key_data(key) != jax.random.key_data(jax.random.key(0)))


def test_wrong_requests_of_a_posterior():
    posterior = credo.fit(TARGET, credo.Laplace())
    with pytest.raises(CredoError, match="number of draws"):
        posterior.sample(0, -1)
    with pytest.raises(CredoError, match="function of y"):
        posterior.check("max")  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="reduce y to one number"):
        posterior.check(lambda y: y)
    with pytest.raises(CredoError, match="dict of name"):
        credo.compare([posterior])  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="'a' is a int"):
        credo.compare({"a": 1})  # type: ignore[dict-item]


def test_groups_without_their_column():
    model = Model(
        {"level": dist.Normal(0.0, 1.0).expand([3])},
        lambda params, x: dist.Normal(params["level"][x["town"]], 1.0),
        groups={"town": "level"},
    )
    with pytest.raises(CredoError, match="groups by column 'town'"):
        model.given(y=np.zeros(4))
    assert model.given().dim == 3  # the prior alone needs no column


def test_exact_says_why_not():
    """The noise is unknown and its prior no conjugate one: a sentence, not numpyro's complaint about a scale."""
    unit = 77.0
    model = Model(
        {"a": dist.Normal(152.0, 2.5 * unit), "sd": dist.Exponential(1 / unit)},
        lambda p, x: dist.Normal(p["a"] + 0.0 * x, p["sd"]),
    )
    y = 152.0 + unit * np.sin(np.arange(50.0) ** 2)
    with pytest.raises(CredoError, match="No closed form"):
        credo.fit(model.given(np.ones(50), y), credo.Exact())


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = dataclasses.field(default=3, metadata={"at_least": 2})


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    rate: float = 0.5
    choice: Literal["a", "b"] = "a"
    share: float = dataclasses.field(default=0.5, metadata={"below": 1.0})
    rule: Callable[[float], float] | None = None
    anything: Any = None
    is_on: bool = True


@pytest.mark.parametrize(
    "method", [Outer(), Outer(rate=1), Outer(Inner(np.int64(2)), np.float64(1.0), "b", 0.5, abs, 3, False)]
)
def test_settings_that_fit_their_annotations(method):
    check_settings(method)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Outer(Inner(1)), r"Inner\(size=1\): size is 2 or more"),
        (Outer(Inner(2.0)), r"Inner\(size=2.0\): size is a whole number, such as 3"),
        (Outer(3), r"inner is of the kind Inner, such as Inner\(size=3\)"),
        (Outer(rate=np.nan), "rate is a number, such as 0.5"),
        (Outer(choice="c"), "choice is 'a' or 'b'"),
        (Outer(choice=np.zeros(2)), "choice is 'a' or 'b'"),
        (Outer(rate=10**20), "no program counts that far"),
        (Outer(rule=3), "rule is of the kind Callable or None"),
        (Outer(is_on=1), "is_on is True or False"),
        (Outer(share=1.0), r"Outer\(share=1.0\): share is below 1.0. Lower it."),
        (Outer(anything=((3, Inner(1)),)), r"Inner\(size=1\): size is 2 or more"),
        (Outer(anything={"a": [Inner(1)]}), r"Inner\(size=1\): size is 2 or more"),
    ],
)
def test_settings_that_do_not(method, sentence):
    with pytest.raises(CredoError, match=sentence):
        check_settings(method)


@pytest.mark.parametrize("value", ["0.9", None, [1], np.zeros(2), np.nan])
def test_settings_of_another_kind_are_told_where_they_are_written(value):
    """A comparison with a string raised before."""
    for make in (
        lambda: credo.HMC(num_steps=value),
        lambda: credo.NUTS(max_depth=value),
        lambda: credo.Slice(max_widths=value),
        lambda: credo.SMC(ess_share=value),
        lambda: credo.MALA(target_acceptance="a" if value is None else value),
    ):
        with pytest.raises(CredoError, match="got"):
            make()


@pytest.mark.parametrize(
    "method",
    [credo.Laplace(), credo.MAP(), credo.MLE(), credo.Grid(), credo.NUTS(chains=1, num_warmup=20, num_draws=20)],
    ids=lambda method: type(method).__name__,
)
def test_precision_means_the_same_for_every_method(method):
    """The approximation and its draws in the precision of the fit; what is summed over them in float64."""
    for precision in ("float32", "float64"):
        posterior = credo.fit(TARGET, method, precision=precision, progress=False)
        assert {leaf.dtype for leaf in jax.tree.leaves(posterior.kind)} == {np.dtype(precision)}
        assert {leaf.dtype for leaf in posterior.sample(0, 3).values()} == {np.dtype(precision)}
        for summary in (posterior.mean(), posterior.sd(), posterior.quantile(0.3)):
            assert {np.asarray(leaf).dtype for leaf in summary.values()} == {np.dtype("float64")}


def test_means_of_many_single_precision_draws():
    """A sum of 3·10⁶ float32 numbers in float32 stops growing at 2²⁴ of the first; in float64 it does not."""
    draws = np.full((1, 3_000_000, 3), np.float32(1.1))
    posterior = Posterior(Draws(draws), TARGET.cast(np.float32), verdict=credo.Verdict("pass"))
    np.testing.assert_allclose(posterior.mean()["w"], np.float32(1.1), rtol=1e-7)
    assert np.all(posterior.sd()["w"] < 1e-6)


SOLE = Model(dist.Normal(0.0, 1.0), lambda p, x: dist.Normal(p, 1.0), derived={"twice": lambda params: 2 * params})


@pytest.mark.parametrize("method", [credo.Laplace(), credo.NUTS(chains=2, num_warmup=50, num_draws=50)])
def test_a_prior_that_is_one_distribution_is_called_params(method):
    """By name it is "params"; the likelihood and the methods of the posterior have the bare value."""
    target = SOLE.given(y=np.array([1.0, 2.0, 0.0]))
    posterior = credo.fit(target, method, start={"params": 0.3}, progress=False)
    assert list(posterior.summary().index) == ["params", "twice"]
    assert np.shape(posterior.mean()) == ()
    assert posterior.sample(0, 5).shape == (5,)
    assert set(posterior.to_arviz()["posterior"].data_vars) == {"params", "twice"}
    assert set(SOLE.sample_prior(0, 2)) == {"params", "twice"}
    with pytest.raises(CredoError, match="start lacks 'params'; the model has params"):
        credo.fit(target, method, start={"mean": 0.3})
    with pytest.raises(CredoError, match="The prior of 'params' is float"):
        Model(1.0, None)


SHORT = credo.NUTS(chains=2, num_warmup=20, num_draws=20)


def stopped_before_it_began(start, folder, monkeypatch) -> str:
    """What is said of a fit that Ctrl-C stops while its chains look for their starts."""

    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

    with obeying_ctrl_c(), monkeypatch.context() as patch:
        patch.setattr("credo.methods.mcmc.chains.start_chains", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            credo.fit(TARGET, SHORT, start=start, checkpoint=folder, progress=False)
    return caught.value.__notes__[0]


@pytest.mark.parametrize("start", [None, {"w": [0.5, -0.5], "sd": 1.2}, np.array([[0.1, 0.2, 0.3], [0.7, -1.0, -0.3]])])
def test_a_fit_stopped_before_it_began_is_resumed_from_its_start(tmp_path, monkeypatch, start):
    assert "credo.resume begins it" in stopped_before_it_began(start, tmp_path, monkeypatch)
    resumed = credo.resume(tmp_path, TARGET, progress=False)
    whole = credo.fit(TARGET, SHORT, start=start, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, whole.kind.positions)


def test_a_fit_that_prepares_for_long_is_kept_from_its_first_moment(tmp_path, monkeypatch):
    """SIGTERM ends such a fit at once, without a word: what was asked for is in the folder already."""
    method = credo.SGLD(chains=2, num_warmup=4, num_draws=8, num_steps=2)

    def interrupt(*_):
        assert (tmp_path / "run.safetensors").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("credo.methods.sgmcmc.stochastic.measure", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            credo.fit(TARGET, method, checkpoint=tmp_path, progress=False)
    assert "credo.resume begins it" in caught.value.__notes__[0]
    resumed = credo.resume(tmp_path, TARGET, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, credo.fit(TARGET, method, progress=False).kind.positions)


def test_a_fit_killed_before_its_run_is_resumed_in_its_layout(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("credo.methods.mcmc.sampling.sample", interrupt)
        with pytest.raises(KeyboardInterrupt):
            credo.fit(TARGET, SHORT, checkpoint=tmp_path, layout="vectorized", progress=False)
    assert credo.resume(tmp_path, TARGET, progress=False).info["layout"] == "vectorized"


@pytest.mark.parametrize("start", [None, credo.Laplace()])
def test_ctrl_c_after_the_run_says_that_it_is_kept(tmp_path, monkeypatch, start):
    """As while the verdict is made."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    posterior = start and credo.fit(TARGET, start, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr("credo.methods.mcmc.chains.figures", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            credo.fit(TARGET, SHORT, start=posterior, checkpoint=tmp_path, progress=False)
    assert "The run so far is kept" in caught.value.__notes__[0]
    whole = credo.fit(TARGET, SHORT, start=posterior, progress=False)
    resumed = credo.resume(tmp_path, TARGET, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, whole.kind.positions)


def test_a_loop_of_the_users_own_in_single_precision_comes_before_a_fit():
    """JAX 0.10 keeps labels of 64 bits as whole numbers of 32 for all programs that meet the same array."""
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Bernoulli(logits=p["w"] * x))
    target = model.given(X[:, 0], np.arange(len(X)) % 2).flat()
    with jax.enable_x64(False):
        walk = jax.jit(lambda u: jax.lax.fori_loop(0, 3, lambda _, u: u + jax.grad(target.log_density)(u), u))
        walk(jax.numpy.zeros(1))
    assert credo.fit(target, credo.Laplace(), progress=False).verdict.status == "pass"


def test_a_start_that_is_a_posterior_is_not_kept(tmp_path, monkeypatch):
    """A file holds no posterior to start from, and so none is promised."""
    start = credo.fit(TARGET, credo.Laplace())
    assert "nothing is kept" in stopped_before_it_began(start, tmp_path, monkeypatch)
    with pytest.raises(CredoError, match="holds no run to continue"):
        credo.resume(tmp_path, TARGET)


MATRIX = np.eye(20) + 0.5
with jax.enable_x64(True):
    DOUBLE = jax.numpy.asarray(X)


def by_numpy(p, x):
    return dist.MultivariateNormal(x @ p["w"], covariance_matrix=MATRIX)


def by_jax(p, x):
    return dist.Normal(jax.lax.scan(lambda c, row: (c + row @ p["w"],) * 2, DOUBLE[0, 0], DOUBLE)[1], 1.0)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # JAX's own, of its float64 array
@pytest.mark.parametrize("likelihood", [by_numpy, by_jax])
def test_a_captured_array_of_the_other_precision_has_its_sentence(likelihood):
    """JAX 0.10 keeps a NumPy array in the precision in which some program read it first."""
    target = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, likelihood).given(X, np.arange(20.0))
    assert credo.fit(target, credo.Laplace()).verdict.status == "pass"
    with pytest.raises(CredoError, match=r"from outside of their arguments.*give the array as data, in x, or copy it"):
        credo.fit(target, credo.Laplace(), precision="float32")


def test_a_captured_array_that_is_copied_where_it_is_read_serves_either_precision():
    matrix = np.eye(20) + 0.5

    def likelihood(p, x):
        return dist.MultivariateNormal(x @ p["w"], covariance_matrix=np.array(matrix))

    target = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, likelihood).given(X, np.arange(20.0))
    found = [credo.fit(target, credo.Laplace(), precision=each).mean()["w"] for each in ("float64", "float32")]
    np.testing.assert_allclose(*found, atol=1e-4)
