"""Over all places that a minibatch may come from, the mean of what a method makes of it is that of all data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.batches import in_batches
from credo.methods.sgmcmc.gradient import Anchor, stochastic_gradient
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.reparameterised import Reparameterised
from credo.methods.vi.gradients.rowwise import Flipout, LocalReparameterised
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.minibatch import lay_anchor, on_batch
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.stochastic.ascent import Tuning, mirrored, place
from credo.model.noisy import likelihood_layers
from credo.model.windows import shuffled, window
from credo.precision import double

N, M = 12, 5  # a window does not divide the data


def network(num_rows=N, num_places=0):
    """``num_places``: tokens of a row, to each of which the first layer is applied; 0 for a dense layer."""
    random = np.random.default_rng(0)
    x = random.normal(size=(num_rows, *([num_places] if num_places else []), 2))
    y = random.integers(0, 2, num_rows)
    params = {"in": {"w": random.normal(size=(2, 3)), "b": np.zeros(3)}, "out": random.normal(size=3)}

    def apply(params, x):
        hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
        return (hidden.sum(axis=-2) if num_places else hidden) @ params["out"]

    weights = random.uniform(0.5, 2.0, num_rows)
    return credo.nn.BayesianNetwork(apply, params, head=credo.nn.Bernoulli()).given(x, y, weights=weights).flat()


def position(target):
    return jnp.asarray(np.random.default_rng(1).normal(size=target.dim))


def of_sampling(has_anchor):
    """SGLD's family and its control variates."""

    def gradient(target, batch):
        u = position(target)
        if not has_anchor:
            return jax.grad(target.log_density)(u, batch)
        at = jnp.zeros(target.dim)
        full = jax.grad(lambda u: target.log_density(u, None))(at)
        found = jax.grad(target.log_density)(u, batch) - jax.grad(target.log_density)(at, batch)
        return found + full

    return gradient


def of_training(target, batch):
    """Ensembles and SWAG."""
    u = position(target)
    return jax.grad(lambda u: (target.log_jacobian(u) - target.log_density(u, batch)) / target.size)(u)


def of_anchored_vi(target, batch):
    """ADVI in few dimensions: f̃ of minibatch.py."""
    anchor = lay_anchor(target, jnp.zeros(target.dim))
    return jax.grad(on_batch(target, anchor, target.rows() if batch is None else batch))(position(target))


def of_vi(estimator):
    """ADVI on networks, and IVON, whose mean and curvature these two tangents are."""

    def gradient(target, batch):
        family, d = MeanField(), target.dim
        q = family.start(position(target), jnp.full(d, 0.3))
        z = estimator.noise(ELBO(), family, jax.random.key(2), 4, d)
        log_density = estimator.on_rows(target, batch)

        def objective(tangent):
            return estimator.surrogate(ELBO(), family, q, tangent, log_density, z, None, 4)

        return jnp.concatenate(jax.grad(objective)(family.rest(q)))

    return gradient


def gradients(estimator, target, num, at_once):
    """Mean of single draws' gradients, its standard errors, and their total variance."""
    family, d = MeanField(), target.dim
    q = family.start(position(target), jnp.full(d, 0.3))
    log_density = estimator.on_rows(target, None)

    def one(z):
        z = jax.tree.map(lambda leaf: leaf[None], z)

        def objective(tangent):
            return estimator.surrogate(ELBO(), family, q, tangent, log_density, z, None, 1)

        return jnp.concatenate(jax.grad(objective)(family.rest(q)))

    z = estimator.noise(ELBO(), family, jax.random.key(2), num, d)
    found = np.asarray(jax.jit(lambda z: in_batches(one, z, at_once))(z))
    pairs = 0.5 * (found[: num // 2] + found[num // 2 :])  # of mirrored weights
    return found.mean(axis=0), pairs.std(axis=0) / np.sqrt(num // 2), np.sum(found.var(axis=0))


METHODS = {
    "SGLD, SGHMC, SGNHT, ConstantSGD": of_sampling(False),
    "the same with control variates": of_sampling(True),
    "DeepEnsemble, SWAG, MultiSWAG": of_training,
    "ADVI with an anchor": of_anchored_vi,
    "ADVI and NaturalGradient on networks": of_vi(StickingTheLanding()),
    "the same, closed entropy": of_vi(Reparameterised()),
}


@pytest.mark.parametrize("name", METHODS)
def test_minibatch_estimators_are_unbiased(name):
    with double():
        target = network()
        data = shuffled(target, M, np.random.default_rng(3))
        gradient = METHODS[name]

        def at(start):
            return gradient(target, window(data, M, start))

        found, whole = jax.jit(lambda starts: (jax.lax.map(at, starts), gradient(target, None)))(jnp.arange(N))
        np.testing.assert_allclose(found.mean(axis=0), whole, rtol=1e-9, atol=1e-9)
        assert np.max(np.abs(found - found.mean(axis=0))) > 1e-3  # single ones differ


def test_what_the_samplers_compile_draws_those_windows():
    """The mean of the sampler's own gradient over keys, within its Monte Carlo error."""
    with double():
        target = network()
        data, u = shuffled(target, M, np.random.default_rng(3)), position(target)
        full = jax.grad(target.log_density)(u)
        for anchor in (None, Anchor(np.zeros(target.dim), jax.grad(target.log_density)(jnp.zeros(target.dim)))):
            draw = stochastic_gradient(data, M, anchor)
            found = jax.jit(jax.vmap(lambda key, draw=draw: draw(key, u)))(jax.random.split(jax.random.key(0), 4_000))
            error = found.std(axis=0) / np.sqrt(len(found))
            assert np.max(np.abs(found.mean(axis=0) - full) / error) < 4.5


def test_windows_of_the_ascent_are_equally_likely():
    begins = [[int(place(Tuning(np.int32(f), 1, 1.0), N, M, t)) for f in range(N)] for t in (0, 1, 7, 1_000)]
    assert all(sorted(row) == list(range(N)) for row in begins)


@pytest.mark.parametrize(
    ("num_rows", "num_places", "num"), [(100, 0, 1_000), pytest.param(12, 3, 10_000, marks=pytest.mark.slow)]
)
def test_draws_by_row_are_unbiased_and_less_noisy_on_a_batch(num_rows, num_places, num):
    """Dense layers, and a layer at three places of a row, whose outputs there hang together."""
    with double():
        target = network(num_rows, num_places)
        at_once = 12_000 // num_rows
        shared, shared_error, shared_variance = gradients(Reparameterised(), target, num, at_once)
        for estimator in (LocalReparameterised(), Flipout()):
            mean, error, variance = gradients(estimator, target, num, at_once)
            assert np.max(np.abs(mean - shared) / np.hypot(error, shared_error)) < 4.5
            assert num_rows == 12 or variance < 0.8 * shared_variance


@pytest.mark.parametrize("estimator", [Reparameterised(), LocalReparameterised(), Flipout()])
def test_a_draw_and_its_mirror_image_cancel_what_is_odd(estimator):
    """Of a linear network the gradient of q's mean is linear in the noise: together they leave log p's at the mean."""
    x = np.random.default_rng(0).normal(size=(N, 2))
    head = credo.nn.Gaussian(0.5)
    linear = credo.nn.BayesianNetwork(lambda params, x: x @ params["w"], {"w": np.zeros(2)}, head=head)
    with double():
        target, family = linear.given(x, x[:, 0]).flat(), MeanField()
        q = family.start(position(target), jnp.full(2, 0.3))
        z = estimator.noise(ELBO(), family, jax.random.key(2), 1, 2)
        log_density = estimator.on_rows(target, None)

        def gradient(z):
            def objective(tangent):
                return estimator.surrogate(ELBO(), family, q, tangent, log_density, z, None, 1)

            return jax.grad(objective)(family.rest(q))[0]

        exact = 0.3 * jax.grad(target.log_density)(position(target))
        np.testing.assert_allclose(0.5 * (gradient(z) + gradient(mirrored(z))), exact, rtol=1e-9)


def test_an_output_is_drawn_with_the_variance_that_its_weights_give_it():
    """Of Σ_i a_i w_ij, w_ij of independent sds: Σ_i a_i² σ_ij² (Kingma, Salimans & Welling 2015, equation 6)."""
    with double():
        target, random = network(), np.random.default_rng(4)
        layer = max(likelihood_layers(target, target.rows()).layers, key=lambda layer: layer.index.size)
        σ = jnp.asarray(random.uniform(0.1, 2.0, target.dim))
        make, ε = LocalReparameterised().maker(layer, 1, jax.random.key(0), N, σ, jnp.zeros_like(σ), 1.0)
        a = random.normal(size=(1, layer.index.shape[0]))
        assert np.asarray(ε).shape == (N, layer.index.shape[1])
        expected = np.sqrt(a**2 @ np.asarray(σ)[layer.index] ** 2)
        np.testing.assert_allclose(make(jnp.ones(layer.index.shape[1]))(a), expected, rtol=1e-12)


def test_what_has_no_rows_or_layers_is_refused():
    target = network()
    with pytest.raises(credo.CredoError, match="independent normals"):
        credo.fit(target, credo.ADVI(family=credo.FullRank(), gradient=Flipout(), batch_size=M))
    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(jnp.exp(-(params["rate"] ** 2))))
    with pytest.raises(credo.CredoError, match="found no parameter"):
        credo.fit(model.given(y=np.array([1, 2, 3])), credo.ADVI(gradient=LocalReparameterised()))


@pytest.mark.parametrize(
    "method",
    [
        credo.ADVI(gradient=LocalReparameterised(), max_steps=20),
        credo.ADVI(gradient=Flipout(), max_steps=20),
        credo.MCDropout(num_steps=20),
    ],
)
def test_weights_within_a_scan_have_no_noise_of_their_own(method):
    """A row's noise is in the layers outside, and what is inside is drawn as usual: shared steps, and a stack's own."""

    def apply(p, x):
        def step(h, own):
            row, w = own
            return jnp.tanh(h @ w + row @ p["i"]), None

        h, _ = jax.lax.scan(step, jnp.zeros((len(x), 3)), (jnp.swapaxes(x, 0, 1), p["w"]))
        return h @ p["o"]

    random = np.random.default_rng(0)
    params = {"i": random.normal(size=(2, 3)), "w": random.normal(size=(4, 3, 3)), "o": random.normal(size=(3, 2))}
    model = credo.nn.BayesianNetwork(apply, params, head=credo.nn.Categorical())
    target = model.given(random.normal(size=(12, 4, 2)), np.arange(12) % 2)
    assert [layer.index.shape for layer in likelihood_layers(target.flat()).layers] == [(3, 2)]
    posterior = credo.fit(target, method, key=0, progress=False)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(posterior.mean()))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [LocalReparameterised(), Flipout()])
def test_data_outside_of_memory_give_the_same_fit(gradient):
    """Its layers are looked for in a row, not in all rows at once."""
    held = network(60)
    batches = [(held.x[i : i + 25], held.y[i : i + 25], held.weights[i : i + 25]) for i in range(0, 60, 25)]
    method = credo.ADVI(batch_size=20, gradient=gradient, max_steps=40)
    targets = held, held.model.given(credo.Loader(batches, in_memory=False))
    first, second = (credo.fit(target, method, key=3, progress=False).mean() for target in targets)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), first, second)
