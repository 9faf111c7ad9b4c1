"""The wrong inputs that users make, one by one: a sentence with cause, value and remedy, and nothing lost."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints

import credo
from credo import CredoError, Model

X = np.random.default_rng(0).normal(size=(20, 3))
Y = (X[:, 0] > 0.3).astype(int)


def logits(params, x):
    return dist.BernoulliLogits(x @ params["w"])


MODEL = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, logits)


def changed(values, index, value):
    values = np.array(values, float)
    values[index] = value
    return values


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(value):
    with pytest.raises(CredoError, match=r"x has 1 NaN or infinite value \(the first in row 4"):
        MODEL.given(changed(X, (4, 1), value), Y)
    with pytest.raises(CredoError, match=r"y has 1 (NaN or )?infinite value \(the first in row 2"):
        MODEL.given(X, changed(Y, 2, value))


def test_outcome_outside_the_support():
    with pytest.raises(CredoError, match=r"1 row.*outside the likelihood's support.*row 3: 2"):
        MODEL.given(X, changed(Y, 3, 2).astype(int))


def test_lengths_differ():
    with pytest.raises(CredoError, match=r"differ in length \(x has 20, y has 19 rows\)"):
        MODEL.given(X, Y[:-1])


def test_columns_that_no_order_knows():
    with pytest.raises(CredoError, match="keys of a dict within the data are of several types"):
        MODEL.given({0: X, "b": X}, Y)


def test_no_rows():
    with pytest.raises(CredoError, match="no rows"):
        MODEL.given(X[:0], Y[:0])


def test_fewer_rows_than_parameters():
    posterior = credo.fit(MODEL.given(X[:2], Y[:2]), credo.Laplace())
    assert posterior.verdict.status in ("pass", "doubtful")
    assert any("prior decides" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_prior_scale_not_positive(scale):
    with pytest.raises(ValueError, match="scale"):
        Model({"w": dist.Normal(0.0, scale).expand([3])}, logits)


def test_support_the_method_cannot_handle():
    model = Model({"k": dist.Poisson(3.0)}, lambda params, x: dist.Normal(params["k"], 1.0))
    with pytest.raises(CredoError, match=r"'k' is discrete, and HMC\(\) .* fit Gibbs"):
        credo.fit(model.given(y=np.zeros(3)), credo.HMC())


@pytest.mark.parametrize("method", [credo.Laplace(), credo.ADVI(), credo.NUTS(num_warmup=300, num_draws=300)])
def test_improper_posterior(method):
    """A coordinate that neither prior nor data restrain."""
    flat = Model(
        {"a": dist.ImproperUniform(constraints.real, (), ()), "b": dist.Normal(0.0, 1.0)},
        lambda params, x: dist.Normal(params["b"] + 0.0 * params["a"], 1.0),
    )
    verdict = credo.fit(flat.given(y=np.zeros(5)), method, progress=False).verdict
    assert verdict.status != "pass"
    assert verdict.sentences


@pytest.mark.parametrize("method", [credo.MAP(), credo.MLE(), credo.Laplace()])
def test_separable_classes_under_a_flat_prior(method):
    x = np.linspace(-1, 1, 20)[:, None]
    model = Model({"w": dist.ImproperUniform(constraints.real, (1,), ())}, logits)
    verdict = credo.fit(model.given(x, (x[:, 0] > 0).astype(int)), method).verdict
    assert verdict.status == "failed"
    assert any("w" in sentence and "infinity" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize("method", [credo.NUTS(num_warmup=300, num_draws=300), credo.Slice(num_draws=300)])
def test_chains_that_nothing_holds_are_of_an_improper_posterior(method):
    x = np.linspace(-1, 1, 20)
    prior = {"a": dist.Normal(0.0, 5.0), "slope": dist.ImproperUniform(constraints.real, (), ())}
    model = Model(prior, lambda params, x: dist.Bernoulli(logits=params["a"] + params["slope"] * x))
    verdict = credo.fit(model.given(x, (x > 0).astype(int)), method, progress=False).verdict
    assert verdict.status == "failed"
    assert verdict.sentences[0] == (
        "The density does not fall along 'slope': the posterior is improper. Give it a proper prior."
    )


def test_likelihood_of_the_wrong_shape():
    model = Model({"w": dist.Normal(0.0, 1.0).expand([3, 1])}, logits)
    with pytest.raises(CredoError, match=r"batch_shape \(20, 1\).*y has shape \(20,\)"):
        model.given(X, Y)


def test_fit_of_a_model_without_data():
    with pytest.raises(CredoError, match="Target, made by model.given"):
        credo.fit(MODEL, credo.Laplace())


def test_start_of_the_wrong_shape():
    with pytest.raises(CredoError, match=r"start has shape \(2,\)"):
        credo.fit(MODEL.given(X, Y), credo.Laplace(), start=np.zeros(2))


def test_nothing_finite_at_the_start():
    """The sentence names the observation to blame."""
    model = Model({"scale": dist.HalfNormal(1.0)}, lambda params, x: dist.Uniform(0.0, params["scale"]), derived=None)
    y = np.full(5, 0.1)
    y[3] = 1e9
    with pytest.raises(CredoError, match="row 3"):
        credo.fit(model.given(y=y), credo.NUTS(num_warmup=10, num_draws=10), progress=False)


def test_inputs_that_do_not_fit_the_parameters():
    with pytest.raises(CredoError, match=r"cannot be evaluated at these data.*w\[3\].*\(20, 2\)"):
        MODEL.given(X[:, :2], Y)


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda params, x: dist.Normal(params["w"][0] * x, 1.0),
        lambda params, x: dist.Normal(x @ params["w"], 1.0),
        lambda params, x: dist.Normal(params["w"][0] * x.sum(axis=1), 1.0),
        lambda params, x: dist.Normal(jnp.exp(x) * params["w"][0], 1.0),
    ],
)
def test_a_data_frame_reaches_the_likelihood_as_a_dict(likelihood):
    model = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, likelihood)
    with pytest.raises(CredoError, match=r"as a dict of columns.*as in x\['x'\]"):
        model.given(pd.DataFrame({"x": X[:, 0]}), Y)


def raises(params, x):
    raise RuntimeError("out of paper")


@pytest.mark.parametrize(
    ("likelihood", "x", "sentence", "cause"),
    [
        (lambda p, x: dist.Normal(x @ p["v"], 1.0), X, r"asks for 'v'.* the model has parameters w\.", KeyError),
        (
            lambda p, x: dist.Normal(x["b"] * p["w"][0], 1.0),
            {"a": X[:, 0]},
            r"asks for 'b'.*parameters w, and the data have columns a\.",
            KeyError,
        ),
        (lambda p, x: dist.Normal(p["w"][0, 0], 1.0), X, r"cannot be evaluated.*Too many indices.*w\[3\]", IndexError),
        (
            lambda p, x: dist.Normal(1.0 if p["w"][0] > 0 else 0.0, 1.0),
            X,
            "needs the value of a parameter, .*jnp.where",
            Exception,
        ),
        (lambda p, x: dist.Normal(p.w[0], 1.0), X, "raised AttributeError .*'w'", AttributeError),
        (lambda x, p: dist.Normal(x @ p["w"], 1.0), X, r"the parameters first, .*likelihood\(params, x\)", TypeError),
        (raises, X, r"The likelihood raised RuntimeError \(out of paper\)", RuntimeError),
    ],
)
def test_a_likelihood_that_fails(likelihood, x, sentence, cause):
    """One sentence, with the user's own traceback as its cause."""
    with pytest.raises(CredoError, match=sentence) as caught:
        Model({"w": dist.Normal(0.0, 1.0).expand([3])}, likelihood).given(x, Y)
    assert isinstance(caught.value.__cause__, cause)
    with pytest.raises(CredoError, match=sentence):
        Model({"w": dist.Normal(0.0, 1.0).expand([3])}, likelihood).sample_prior_predictive(0, x, 2)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (credo.NUTS(num_draws=10.5), r"NUTS\(num_draws=10.5\): num_draws is a whole number, such as 1000"),
        (credo.NUTS(chains=True), "chains is a whole number"),
        (credo.NUTS(metric=3), "metric is of the kind MetricEstimator"),
        (credo.Importance(), "needs a posterior to draw from"),
        (credo.Importance(proposal=3), "proposal is of the kind Posterior or None"),
        (credo.Laplace(structure="dense"), "structure is of the kind Structure or None"),
        (credo.ADVI(family="full"), r"family is of the kind Family, such as MeanField\("),
        (credo.ADVI(family=credo.FullRank), "family is of the kind Family"),
        (credo.ADVI(tolerance="small"), "tolerance is a number or None"),
        (credo.Laplace(num_steps=-1), r"Laplace\(num_steps=-1\): num_steps is 0 or more"),
        (credo.MLE(num_steps=-3), r"MLE\(num_steps=-3\): num_steps is 1 or more"),
        (credo.MAP(batch_size=2.5), "batch_size is a whole number or None"),
        (credo.MAP(optimiser="adam"), "optimiser is of the kind GradientTransformation or None"),
    ],
)
def test_settings_of_the_wrong_kind(method, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(MODEL.given(X, Y), method, progress=False)


def test_settings_below_their_bound():
    with pytest.raises(CredoError, match="chains is at least 1; got 0"):
        credo.NUTS(chains=0)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"time_limit": -1}, "time_limit is a number of seconds above 0; got -1"),
        ({"time_limit": "1h"}, "time_limit is a number of seconds above 0; got '1h'"),
        ({"max_memory": 0}, "max_memory is a number of bytes above 0; got 0"),
        ({"max_memory": 10}, "max_memory=10 bytes is less than any fit needs"),
        ({"layout": "gpu"}, "layout='gpu' does not exist"),
        ({"precision": "half"}, "precision is 'float64' or 'float32'"),
    ],
)
def test_options_of_fit(option, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(MODEL.given(X, Y), credo.Laplace(), **option)


@pytest.mark.parametrize("names", [[], (), 3])
def test_a_summary_of_nothing(names):
    posterior = credo.fit(MODEL.given(X, Y), credo.MAP())
    with pytest.raises(CredoError, match=r"names nothing to show: give a list.*summary\(names=\['w'\]\)"):
        posterior.summary(names)
    assert len(posterior.summary("w")) == 3
    with pytest.raises(CredoError, match="has no 'weights'; it has w"):
        posterior.summary("weights")


def test_compare_of_different_models():
    first = credo.fit(MODEL.given(X, Y), credo.MAP())
    other = credo.fit(Model({"v": dist.Normal(0.0, 1.0)}, None).given(), credo.MAP())
    with pytest.raises(CredoError, match="approximations of one posterior"):
        credo.compare({"a": first, "b": other})


def test_compare_of_different_data():
    """Single precision of the same data is the same data."""
    first = credo.fit(MODEL.given(X, Y), credo.MAP())
    single = credo.fit(MODEL.given(X, Y), credo.MAP(), precision="float32")
    fewer = credo.fit(MODEL.given(X[:-5], Y[:-5]), credo.MAP())
    credo.compare({"a": first, "b": single}, show=False)
    scaled = credo.fit(MODEL.given(10 * X, Y), credo.MAP())
    with pytest.raises(CredoError, match="'a' and 'd' were fitted to different x"):
        credo.compare({"a": first, "b": single, "d": scaled})
    with pytest.raises(CredoError, match="'a' and 'c' were fitted to different y"):
        credo.compare({"a": first, "c": fewer}, show=False)


def test_loading_with_another_prior(tmp_path):
    credo.fit(MODEL.given(X, Y), credo.Laplace()).save(tmp_path / "p.credo")
    wider = Model({"w": dist.Normal(0.0, 5.0).expand([3])}, logits)
    with pytest.raises(CredoError, match="log prior at the recorded position"):
        credo.load(tmp_path / "p.credo", wider)


@pytest.mark.parametrize(("prior", "cause"), [(dist.Levy(0.0, 1.0), "no bijection"), (dist.Delta(1.0), "a constant")])
def test_priors_that_are_no_parameters(prior, cause):
    with pytest.raises(CredoError, match=f"'x'.*{cause}"):
        credo.Model({"x": prior}, None).given()


def density_by_a_loop(params):
    return -(jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 0.9 * c[1]), (0, params["x"]))[1] ** 2)


@pytest.mark.parametrize("method", [credo.NUTS(), credo.Laplace(), credo.ADVI(), credo.Pathfinder()], ids=repr)
def test_a_loop_of_unknown_length_cannot_be_differentiated(method):
    target = credo.Model.from_log_density(density_by_a_loop, {"x": constraints.real}).given()
    with pytest.raises(credo.CredoError, match=r"lax.scan.*Slice\(\)"):
        credo.fit(target, method, progress=False)


def test_derivatives_backward_alone_are_said():
    @jax.custom_vjp
    def rounded(z):
        return jnp.round(4 * z) / 4

    rounded.defvjp(lambda z: (rounded(z), None), lambda _, g: (g,))

    def apply(p, x):
        return rounded(jnp.tanh(x @ p["w"])) @ p["v"]

    network = credo.nn.BayesianNetwork(apply, {"w": np.ones((3, 2)), "v": np.ones(2)}, head=credo.nn.Gaussian(0.5))
    target = network.given(X, X[:, 0])
    with pytest.raises(CredoError, match=r"jax.custom_vjp.*jax.custom_jvp"):
        credo.fit(target, credo.Laplace(structure=credo.laplace.LowRank(2), num_steps=0))
    for structure in (None, credo.laplace.Kronecker()):
        by_layers = credo.Laplace(structure=structure, num_steps=0)
        assert np.isfinite(credo.fit(target, by_layers).info["log_density"])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model, posterior: Model({}, None), "The prior is empty"),
        (lambda model, posterior: model.sample_prior(0, -1), "whole number from 0; got -1"),
        (lambda model, posterior: model.sample_prior(0, 2.5), "whole number from 0; got 2.5"),
        (lambda model, posterior: credo.decisions.choose(posterior), "takes a predictive"),
        (lambda model, posterior: credo.decisions.choose(posterior.predict(X), 3), "acquisition is a function"),
        (lambda model, posterior: credo.plots.decision_curve(posterior, Y), "takes a predictive"),
        (lambda model, posterior: credo.diagnose.sbc(posterior.target, credo.Exact()), "simulates from a model"),
        (lambda model, posterior: credo.diagnose.sbc(model, credo.Exact, x=X), "is an instance"),
        (lambda model, posterior: credo.StoppingRule(ess=-1), "ess is 100 or more"),
        (lambda model, posterior: credo.adapters.from_numpyro(5), "takes a model, a function"),
        (lambda model, posterior: credo.vi.divergences(posterior.target), "q is a Target"),
        (lambda model, posterior: credo.vi.divergences(posterior, 3), "target is a int"),
        (lambda model, posterior: credo.vi.divergences(posterior, reference=3), "reference is a int"),
        (lambda model, posterior: credo.diagnose.posterior_sbc(posterior.target, credo.MAP(), 9, key=0), "got Target"),
        (lambda model, posterior: credo.compare([posterior, posterior]), r"dict of name.*got list"),
        (lambda model, posterior: credo.compare(np.arange(3)), r"dict of name.*got ndarray"),
        (lambda model, posterior: credo.compare({}), r"dict of name.*got an empty one"),
        (
            lambda model, posterior: credo.compare(
                {"map": credo.fit(posterior.target, credo.MAP(), progress=False), "b": posterior}, reference="map"
            ),
            "reference='map' is a point",
        ),
        (lambda model, posterior: credo.fit(posterior.target, credo.ADVI(step_size=2.0)), "1 or less"),
        (lambda model, posterior: credo.fit(posterior.target, credo.MAP(), start=[np.nan, 0, 0]), "not finite"),
    ],
)
def test_arguments_of_another_kind(call, sentence):
    posterior = credo.fit(MODEL.given(X, Y), credo.MAP())
    with pytest.raises(CredoError, match=sentence):
        call(MODEL, posterior)


def test_evidences_of_a_posterior_that_was_loaded_without_its_data(tmp_path):
    model = Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    target = model.given(y=np.array([3, 5, 1, 4]))
    posterior = credo.fit(target, credo.Exact())
    posterior.save(tmp_path / "a.credo")
    with pytest.raises(CredoError, match=r"'loaded' holds no data.*load\(path, model.given"):
        credo.decisions.model_probabilities({"here": posterior, "loaded": credo.load(tmp_path / "a.credo", model)})
    whole = credo.decisions.model_probabilities({"a": posterior, "b": credo.load(tmp_path / "a.credo", target)})
    np.testing.assert_allclose(whole.probs, 0.5)
    with pytest.raises(CredoError, match="has no rows"):
        posterior.predict().log_prob(np.zeros(0))


def test_an_improper_posterior_is_said_by_name():
    model = Model({"s": dist.HalfNormal(1.0)}, lambda params, x: dist.Normal(0.0, params["s"]))
    with pytest.raises(CredoError, match=r"along 's' it may not fall \(an improper posterior\)"):
        credo.fit(model.given(y=np.array([0.0])), credo.DADVI())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_draws": "100"}, r"NUTS\(num_draws='100'\): num_draws is a whole number"),
        ({"chains": None}, "chains is a whole number"),
        ({"num_warmup": "long"}, "num_warmup is a whole number"),
    ],
)
def test_settings_that_are_compared_are_numbers(settings, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(MODEL.given(X, Y), credo.NUTS(**settings))


def test_a_checkpoint_is_a_path():
    with pytest.raises(CredoError, match="path of the folder of a checkpoint is wanted; got 3"):
        credo.fit(MODEL.given(X, Y), credo.NUTS(), checkpoint=3)


def test_particles_do_not_stay_where_the_density_is_zero():
    model = Model({"end": dist.HalfNormal(5.0)}, lambda p, x: dist.Uniform(-p["end"] * jnp.ones(3), p["end"]))
    with pytest.raises(CredoError, match="stand where the density is zero.*move the support"):
        credo.fit(model.given(y=np.array([-0.5, 1.0, 2.0])), credo.SVGD(num_steps=50), progress=False)


def test_a_likelihood_of_one_argument():
    model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["p"]))
    with pytest.raises(credo.CredoError, match=r"one argument and is called with two.*write it as lambda params, x"):
        model.given(y=np.array([0, 1]))
