"""Transformed priors whose support numpyro takes for another: scaled, reflected and shifted ones."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ExpTransform
from scipy import integrate, stats

import credo
from credo.model.distributions import contains, is_moved, transform_to
from credo.precision import double


def moved(base, *transforms):
    return dist.TransformedDistribution(base, list(transforms))


REFLECTED = AffineTransform(2.0, -3.0, domain=constraints.positive)
HALF = stats.halfnorm()
PRIORS = {
    "scaled": (moved(dist.HalfNormal(1.0), AffineTransform(0.0, 2.5)), 2.5 * HALF.mean(), 2.5 * HALF.std()),
    "reflected": (moved(dist.HalfNormal(1.0), REFLECTED), 2 - 3 * HALF.mean(), 3 * HALF.std()),
    "undeclared": (moved(dist.HalfNormal(1.0), AffineTransform(2.0, -3.0)), 2 - 3 * HALF.mean(), 3 * HALF.std()),
    "within": (moved(dist.Beta(2.0, 2.0), AffineTransform(1.0, 4.0)), 3.0, 4 * stats.beta(2, 2).std()),
    "below": (
        moved(dist.Normal(0.0, 0.5), ExpTransform(), AffineTransform(1.0, -1.0)),
        1 - stats.lognorm(0.5).mean(),
        stats.lognorm(0.5).std(),
    ),
}


@pytest.mark.parametrize("name", PRIORS)
def test_density_of_the_coordinate_has_the_moments_of_the_prior(name):
    prior, mean, sd = PRIORS[name]
    assert is_moved(prior)
    target = credo.Model({"v": prior}, None).given().flat()
    with double():
        u = jnp.linspace(-25.0, 25.0, 20_001)[:, None]
        values, log_p = jax.jit(jax.vmap(lambda u: (target.constrain(u)["v"], target.log_density(u))))(u)
        values, p = np.asarray(values), np.exp(np.asarray(log_p))
        back = jax.vmap(lambda u: target.unconstrain(target.constrain(u)))(u[9_000:11_000])
    assert contains(prior, values[5_000:15_000]).all()
    moments = [integrate.simpson(p * values**k, x=np.ravel(u)) for k in range(3)]
    assert np.allclose(moments, [1.0, mean, sd**2 + mean**2], rtol=1e-4)
    assert np.allclose(back, u[9_000:11_000], atol=1e-6)


def test_scales_that_are_parameters_and_independent_axes():
    """The sign of a scale may differ by draw; axes that are reinterpreted count once."""
    priors = {
        "sign": dist.Normal(0.0, 1.0),
        "v": lambda sign: moved(dist.HalfNormal(1.0), AffineTransform(0.0, sign)).expand([3]).to_event(1),
    }
    target = credo.Model(priors, None).given().flat()
    assert not next(leaf for leaf in target.structure.leaves if leaf.name == "v").is_elementwise
    with double():
        for sign in (-0.7, 1.3):
            u = jnp.asarray([sign, -0.4, 0.2, 0.9])
            v = np.asarray(target.constrain(u)["v"])
            assert np.all(np.sign(v) == np.sign(sign))
            jacobian = jax.jacfwd(lambda u: target.constrain(u)["v"])(u)[:, 1:]
            own = stats.norm().logpdf(sign) + np.sum(stats.halfnorm(scale=abs(sign)).logpdf(abs(v)))
            expected = own + np.linalg.slogdet(jacobian)[1]
            assert np.isclose(float(target.log_density(u)), expected, rtol=1e-9)


def test_axes_that_are_reinterpreted_have_one_jacobian():
    prior = PRIORS["reflected"][0].expand([2, 3]).to_event(1)
    with double():
        transform, u = transform_to(prior), jnp.zeros((2, 3))
        assert transform.log_abs_det_jacobian(u, transform(u)).shape == prior.batch_shape


def test_programs_of_numpyro_and_their_summed_sites():
    def program():
        v = numpyro.sample("v", PRIORS["undeclared"][0])
        side = numpyro.sample("side", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(v + side, 1.0), obs=0.5)

    target = credo.adapters.from_numpyro(program).given().flat()
    with double():
        u = jnp.linspace(-25.0, 12.0, 20_001)[:, None]
        values, log_p = jax.jit(jax.vmap(lambda u: (target.constrain(u)["v"], target.log_density(u))))(u)
    found = integrate.simpson(np.exp(np.asarray(log_p)), x=np.ravel(u))

    def density(v):
        likelihood = 0.7 * stats.norm.pdf(0.5, v) + 0.3 * stats.norm.pdf(0.5, v + 1)
        return stats.halfnorm(scale=3.0).pdf(2 - v) * likelihood

    assert np.max(np.asarray(values)) <= 2
    assert np.isclose(found, integrate.quad(density, -30, 2)[0], rtol=1e-4)


def test_outcomes_outside_are_refused_and_files_ask_for_the_model(tmp_path):
    model = credo.Model(
        {"scale": dist.LogNormal(0.0, 1.0)},
        lambda p, x: moved(dist.HalfNormal(1.0), AffineTransform(0.0, p["scale"])).expand([2]),
    )
    with pytest.raises(credo.CredoError, match=r"1 row\(s\) outside the likelihood's support"):
        credo.Model({"m": dist.Normal(0.0, 1.0)}, lambda p, x: PRIORS["scaled"][0].expand([2])).given(y=[1.0, -1.0])
    with double():
        target = model.given(y=np.array([1.0, -1.0])).flat()
        assert np.array_equal(
            np.isfinite(jax.jit(lambda target, u: target.log_likelihood(u))(target, jnp.zeros(1))), [True, False]
        )
    own = credo.Model({"v": PRIORS["reflected"][0]}, lambda p, x: dist.Normal(p["v"], 1.0).expand([3]))
    target = own.given(y=np.array([1.0, 2.0, 3.0]))
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    posterior.save(tmp_path / "p.credo")
    again = credo.load(tmp_path / "p.credo", own)
    assert again.mean()["v"] == pytest.approx(posterior.mean()["v"])
    with pytest.raises(credo.CredoError, match="load it with the model"):
        credo.load(tmp_path / "p.credo").mean()


@pytest.mark.parametrize("scale", [2.0, -2.0])
def test_intervals_keep_their_support_whatever_the_sign(scale):
    prior = moved(dist.Beta(2.0, 3.0), AffineTransform(1.0, scale, domain=constraints.unit_interval))
    assert not is_moved(prior)
    posterior = credo.fit(credo.Model({"v": prior}, None).given(), credo.Slice(), progress=False)
    assert posterior.mean()["v"] == pytest.approx(1 + scale * 0.4, abs=0.05)
    assert posterior.sd()["v"] == pytest.approx(2 * stats.beta(2, 3).std(), rel=0.1)
