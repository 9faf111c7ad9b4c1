"""Copies of a posterior that an approximation leaves out."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

import credo
from cases import first_of
from credo.linalg.diagonal import Diagonal
from credo.methods.particles.copies import _densities, _maps, _stacked, copy_weight
from credo.posterior.kinds import Gaussian, Mixture
from credo.precision import double

RNG = np.random.default_rng(0)
PARTS = np.repeat([-3.0, 0.0, 4.0], 40) + RNG.normal(size=120)


def components(num, weights):
    """A mixture of normals with unknown places and sds."""

    def likelihood(params, x):
        inner = dist.Normal(params["mu"], params["sigma"])
        return dist.MixtureSameFamily(dist.Categorical(probs=weights(params)), inner)

    prior = {"mu": dist.Normal(0.0, 5.0).expand([num]), "sigma": dist.HalfNormal(2.0).expand([num])}
    return prior, likelihood


def three():
    prior, likelihood = components(3, lambda params: params["w"])
    return credo.Model(prior | {"w": dist.Dirichlet(2 * jnp.ones(3))}, likelihood).given(y=PARTS)


def two():
    prior, likelihood = components(2, lambda params: jnp.stack([params["share"], 1 - params["share"]]))
    return credo.Model(prior | {"share": dist.Beta(2.0, 2.0)}, likelihood).given(y=PARTS[40:])


def two_of_one_width():
    """One vector of two, and a share of any interval's prior."""
    prior, _ = components(2, None)

    def likelihood(params, x):
        shares = jnp.stack([params["share"], 1 - params["share"]])
        return dist.MixtureSameFamily(dist.Categorical(probs=shares), dist.Normal(params["mu"], 1.0))

    prior = {"mu": prior["mu"], "share": dist.Uniform(0.0, 1.0)}
    return credo.Model(prior, likelihood).given(y=PARTS[40:])


def two_in_order():
    prior, likelihood = components(2, lambda params: jnp.stack([params["share"], 1 - params["share"]]))
    free = dist.Normal(0.0, 5.0).expand([2]).to_event(1)
    ordered = dist.TransformedDistribution(free, dist.transforms.OrderedTransform())
    return credo.Model(prior | {"mu": ordered, "share": dist.Beta(2.0, 2.0)}, likelihood).given(y=PARTS[40:])


def one_factor():
    """Outcomes whose means are products: the signs of both factors turn together."""
    prior = {"a": dist.Normal(0.0, 1.0).expand([4]), "b": dist.Normal(0.0, 1.0).expand([3])}
    y = np.outer([1.0, -1.0, 2.0, 0.5], [1.0, 1.5, -1.0]) + 0.1 * RNG.normal(size=(4, 3))

    def likelihood(params, x):
        return dist.Normal(jnp.outer(params["a"], params["b"]), 0.1).to_event(1)

    return credo.Model(prior, likelihood).given(y=y)


def one_of_two_factors():
    """A product of the second entries alone: their signs turn together, those of the first are known."""
    prior = {"a": dist.Normal(0.0, 1.0).expand([2]), "b": dist.Normal(0.0, 1.0).expand([2])}
    x = np.repeat([0, 1, 2], 20)
    y = np.array([1.0, -1.0, 3.0])[x] + 0.1 * np.random.default_rng(1).normal(size=60)

    def likelihood(params, x):
        (a0, a1), (b0, b1) = params["a"], params["b"]
        return dist.Normal(jnp.stack([a0, b0, a1 * b1])[x], 0.1)

    return credo.Model(prior, likelihood).given(x, y)


def lengths():
    """A single number of either sign."""
    prior = {"v": dist.Normal(0.0, 2.0).expand([2])}
    y = np.concatenate([3.0 + 0.1 * RNG.normal(size=20), 1.0 + 0.1 * RNG.normal(size=20)])

    def likelihood(params, x):
        return dist.Normal(jnp.where(x > 0, jnp.abs(params["v"][0]), params["v"][1]), 0.3)

    return credo.Model(prior, likelihood).given(np.repeat([1, 0], 20), y)


def groups():
    """Exchangeable before the data, and not after them: no copy."""
    prior = {"a": dist.Normal(0.0, 3.0).expand([3]), "b": dist.Normal(0.0, 3.0).expand([3])}
    x = np.repeat(np.arange(3), 30)
    y = np.array([1.0, 2.0, 3.0])[x] + RNG.normal(size=90)

    def likelihood(params, x):
        return dist.Normal(params["a"][x] + params["b"][x], 1.0)

    return credo.Model(prior, likelihood).given(x, y)


def sample(posterior):
    return np.stack([np.asarray(posterior.kind.sample_u(jax.random.key(i))) for i in range(4)])


@pytest.mark.parametrize("build", first_of([two, three, two_of_one_width, one_factor, one_of_two_factors, lengths]))
def test_a_mode_left_out_is_seen(build):
    posterior = credo.fit(build(), credo.Laplace(), key=1, progress=False)
    assert copy_weight(posterior.kind, posterior.target, sample(posterior)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("build", [two_in_order, groups])
def test_where_there_is_none_nothing_is_said(build):
    posterior = credo.fit(build(), credo.Laplace(), key=1, progress=False)
    assert copy_weight(posterior.kind, posterior.target, sample(posterior)) < 5


def test_copies_that_it_holds_are_none():
    """A mixture with a part in each of two modes that are mirror images."""
    target = credo.Model.from_log_density(
        lambda params: jnp.logaddexp(-2 * (params["x"] - 3) ** 2, -2 * (params["x"] + 3) ** 2), {"x": constraints.real}
    ).given()
    with double():
        both = [Gaussian(np.array([m]), Diagonal(np.array([0.5]))) for m in (3.0, -3.0)]
        whole = Mixture(np.log([0.5, 0.5]), tuple(both))
    draws = np.array([[2.9], [3.1], [-3.2], [2.5]])
    assert copy_weight(whole, target, draws) == pytest.approx(0, abs=1e-6)
    assert copy_weight(both[0], target, np.abs(draws)) == pytest.approx(72, rel=0.2)


def test_a_simplex_is_exchanged_in_its_own_space():
    """The image of a draw is the draw of exchanged weights, at the same density."""
    target = three()
    with double():
        w, mu, sigma = np.array([0.2, 0.5, 0.3]), np.array([4.0, -3.0, 0.0]), np.array([1.0, 0.8, 1.2])

        def at(order):
            position = {
                "mu": jnp.asarray(mu[order]),
                "sigma": jnp.log(jnp.asarray(sigma[order])),
                "w": biject_to(constraints.simplex).inv(jnp.asarray(w[order])),
            }
            return np.asarray(target.flat().structure.ravel(position))

        u, image = at([0, 1, 2]), at([1, 0, 2])
        kind = Gaussian(u, Diagonal(np.ones(u.size)))
        log_p, log_q = _densities(kind, target.flat(), u[None], *_stacked([next(_maps(target.structure))]))
        np.testing.assert_allclose(log_p[:, 0], [target.flat().log_density(v) for v in (u, image)], rtol=1e-10)
        np.testing.assert_allclose(log_q[:, 0], [kind.log_prob_u(jnp.asarray(v)) for v in (u, image)], rtol=1e-10)


@pytest.fixture(scope="module")
def far_apart():
    """Two components that hardly meet, of two widths: each order of them is next to normal."""
    prior, likelihood = components(2, lambda params: jnp.stack([params["share"], 1 - params["share"]]))
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(-8.0, 1.0, 600), rng.normal(8.0, 0.7, 400)])
    return credo.Model(prior | {"share": dist.Beta(2.0, 2.0)}, likelihood).given(y=y)


def test_a_fit_on_one_of_two_orders_does_not_pass(far_apart):
    verdict = credo.fit(far_apart, credo.Laplace(), key=1, progress=False).verdict
    assert verdict.figures["copy_weight"] > 1_000
    assert verdict.status == "doubtful"
    assert any("it holds one of several modes" in sentence for sentence in verdict.sentences)


def test_draws_weighed_from_there_do_not_pass(far_apart):
    proposal = credo.fit(far_apart, credo.Laplace(), key=1, progress=False)
    verdict = credo.fit(far_apart, credo.Importance(proposal), key=1, progress=False).verdict
    assert verdict.figures["copy_weight"] > 1_000
    assert verdict.status == "doubtful"


THREE, THREE_TURNED = ([-3.0, 0.0, 4.0], [0.0, -3.0, 4.0])
FACTORS = {"a": np.array([1.0, -1.0, 2.0, 0.5]), "b": np.array([1.0, 1.5, -1.0])}


@pytest.mark.parametrize(
    ("build", "starts", "said"),
    [
        pytest.param(
            three,
            [{"mu": mu, "sigma": np.ones(3), "w": np.ones(3) / 3} for mu in (THREE, THREE_TURNED)],
            "components in another order (entries of mu, sigma, w exchanged together)",
            marks=pytest.mark.slow,
        ),
        (
            two,
            [{"mu": mu, "sigma": np.ones(2), "share": 0.5} for mu in ([0.0, 4.0], [4.0, 0.0])],
            "components in another order (entries of mu, sigma, share exchanged together)",
        ),
        (one_factor, [FACTORS, {name: -v for name, v in FACTORS.items()}], "the sign of a, b turned"),
        (lengths, [{"v": np.array([3.0, 1.0])}, {"v": np.array([-3.0, 1.0])}], "the sign of"),
    ],
    ids=["three", "two", "one_factor", "lengths"],
)
def test_chains_in_different_copies_are_told_so(build, starts, said):
    target = build()
    starts = [target.flat().unconstrain({k: jnp.asarray(v) for k, v in start.items()}) for start in starts]
    method = credo.NUTS(num_warmup=200, num_draws=200)
    verdict = credo.fit(target, method, key=1, start=np.stack(2 * starts), progress=False).verdict
    assert verdict.figures["max_r_hat"] > 1.1
    assert any(said in sentence for sentence in verdict.sentences)


@pytest.mark.slow
def test_labels_that_are_drawn_are_exchanged_with_the_components():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-4, 1, 20), rng.normal(4, 1, 20)])
    prior = {
        "w": dist.Dirichlet(jnp.ones(2)),
        "mu": dist.Normal(0.0, 5.0).expand([2]),
        "z": lambda w: dist.Categorical(probs=w).expand([40]),
    }
    target = credo.Model(prior, lambda params, x: dist.Normal(params["mu"][params["z"]], 1.0)).given(y=y)
    method = credo.Gibbs(
        {"z": credo.Enumerated(), "w": credo.Conjugate(), "mu": credo.Conjugate()}, num_warmup=20, num_draws=50
    )
    z = (y > 0).astype(int)
    orders = [{"w": np.ones(2) / 2, "mu": sign * np.array([-4.0, 4.0]), "z": z} for sign in (1, -1)]
    orders[1]["z"] = 1 - z
    starts = [target.flat().unconstrain({k: jnp.asarray(v) for k, v in start.items()}) for start in orders]
    verdict = credo.fit(target, method, key=1, start=np.stack(2 * starts), progress=False).verdict
    assert verdict.status == "failed"
    assert any("(entries of w, mu, z exchanged together)" in sentence for sentence in verdict.sentences)


def test_chains_that_disagree_for_another_reason_are_not():
    apart = credo.Model.from_log_density(
        lambda p: jnp.logaddexp(-0.5 * jnp.sum((p["a"] - 9) ** 2), -0.5 * jnp.sum((p["a"] + 8) ** 2)),
        {"a": constraints.real},
        {"a": (2,)},
    )
    verdict = credo.fit(apart.given(), credo.NUTS(num_warmup=200, num_draws=200), key=1, progress=False).verdict
    assert verdict.status == "failed"
    assert not any("The density is the same" in sentence for sentence in verdict.sentences)
