"""Memory is planned: what does not fit is cut into chunks that change nothing, or refused with what would fit."""

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import credo
from credo import crew, memory
from credo.linalg.diagonal import Diagonal
from credo.methods.vi import measure as measuring
from credo.methods.vi.needs import MAX_ROUNDS, of_draws
from credo.model import blocks
from credo.posterior.kinds import Gaussian
from credo.precision import double
from credo.predict import linearised, projection, stream
from credo.predict.monte_carlo import MonteCarlo

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(40, 3)), RNG.integers(6, size=40)


def softmax_network(num_classes: int, num_inputs: int = 3):
    params = {"w": RNG.normal(size=(num_inputs, num_classes))}
    head = credo.nn.Categorical()
    return credo.nn.BayesianNetwork(lambda params, x: x @ params["w"], params, head=head)


@pytest.fixture(scope="module")
def posterior():
    method = credo.Laplace(structure=credo.laplace.Diagonal(), curvature=credo.GaussNewton())
    return credo.fit(softmax_network(6).given(X, LABELS), method, key=0)


def test_refusal_names_the_figure_the_budget_and_what_fits():
    others = [memory.Need("Kronecker()", 2e8), memory.Need("Diagonal()", 8e5), memory.Need("LowRank()", 9e9)]
    with pytest.raises(credo.CredoError) as refused:
        memory.require(memory.Need("Dense()", 8e10), "100,000 weights", 8_000_000_000, others)
    assert str(refused.value) == (
        "Dense() needs 80 GB for 100,000 weights; the budget is 8.0 GB: Kronecker() needs 0.2 GB, Diagonal() needs "
        "0.8 MB."
    )
    with pytest.raises(credo.CredoError, match=r"nothing smaller fits \(Diagonal\(\) needs 0.8 MB\)"):
        memory.require(memory.Need("Dense()", 8e10), "100,000 weights", 1_000, others[1:2])
    memory.require(memory.Need("Dense()", 8e10), "100,000 weights", 10**11)


@pytest.mark.parametrize(("limit", "offered"), [(10**7, 90_000), (42_000, 4_000), (205, 10), (110, 1), (5, 1)])
def test_the_largest_round_number_that_fits_is_offered(limit, offered):
    few = memory.fewer(lambda n: memory.Need(f"num_draws={n}", 100 + 10 * n), 100_000, limit)
    assert few == memory.Need(f"num_draws={offered}", 100 + 10 * offered)


def test_a_refusal_of_many_draws_offers_the_default_where_that_fits():
    for method in (credo.ADVI, credo.NaturalGradient, credo.Pathfinder):
        with pytest.raises(credo.CredoError, match=r": .*num_draws=[2-9]000\)? needs"):
            credo.fit(COEFFICIENTS, method(num_draws=100_000), max_memory=400_000_000)


@pytest.mark.parametrize("optimiser", [None, credo.vi.FlowAdam(), optax.adam(0.1)])
def test_families_are_offered_in_place_of_a_flow_by_optimisers_that_suit_them(optimiser):
    method = credo.ADVI(family=credo.vi.Flow(), optimiser=optimiser)
    with pytest.raises(credo.CredoError, match=r"Flow\(\) needs .* for 2,000 parameters") as refused:
        credo.fit(COEFFICIENTS, method, max_memory=300_000_000)
    is_only_for_flows = isinstance(optimiser, credo.vi.FlowAdam)
    assert ("MeanField() needs" in str(refused.value)) != is_only_for_flows


def test_a_fit_plans_with_half_of_what_is_free_and_a_quarter_of_that_at_once(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 8_000)
    assert memory.budget() == 4_000
    assert memory.budget(1_000) == 1_000
    assert memory.chunk_bytes() == 1_000
    assert memory.chunk_bytes(10**12) == memory.CHUNK
    assert [memory.at_once(each, 50) for each in (100, 1, 10_000)] == [10, 50, 1]


def test_work_within_a_fit_that_is_not_told_keeps_its_limit():
    assert memory.budget() > 2e8
    with memory.limited(100_000_000):
        assert memory.budget() == 100_000_000
        assert memory.budget(7) == 7
        with memory.limited(None):
            assert memory.budget() > 2e8
    assert memory.budget() > 2e8


def test_draws_for_predictions_are_stored_where_the_limit_of_the_fit_has_room(monkeypatch):
    """What is free by chance decides about none: the same key gives the same predictions."""
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000)
    dim = 2_000
    kind = Gaussian(np.zeros(dim), Diagonal(np.ones(dim)))
    for limit, is_stored in ((None, True), (17_000_000, True), (16_000_000, False)):  # four arrays of 4 MB
        with memory.limited(limit), double():
            positions = MonteCarlo(256)._draws(kind, dim, np.array([0, 1], np.uint32), False)[0]
        assert (positions is not None) == is_stored


@pytest.mark.slow
def test_density_in_blocks_of_rows_is_the_density():
    with double():
        whole = softmax_network(6).given(X, LABELS, weights=np.arange(40.0)).flat()
        cut = dataclasses.replace(whole, rows_at_once=16)  # which does not divide 40
        u = jnp.asarray(RNG.normal(size=whole.dim))
        assert np.allclose(whole.log_likelihood(u), cut.log_likelihood(u), rtol=1e-12)
        for of in (jax.value_and_grad, jax.hessian):
            for a, b in zip(*(jax.tree.leaves(of(t.log_density)(u)) for t in (whole, cut)), strict=True):
                assert np.allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_fit_takes_blocks_where_the_budget_asks_for_them():
    network = credo.nn.BayesianNetwork(
        lambda params, x: jnp.tanh(x @ params["in"]) @ params["out"],
        {"in": RNG.normal(size=(3, 300)), "out": RNG.normal(size=300)},
        head=credo.nn.Gaussian(0.1),
    )
    target = network.given(RNG.normal(size=(2_000, 3)), RNG.normal(size=2_000))
    with double():
        assert blocks.in_blocks(target, 10**9).rows_at_once is None
        cut = blocks.in_blocks(target, 10_000_000).rows_at_once
        assert cut is not None
        assert 3 * blocks.row_bytes(target) * cut <= 10_000_000 / 4  # derivatives of a block


@pytest.mark.parametrize("lag", [0, 1])
def test_rows_that_lean_on_each_other_are_not_cut_into_blocks(lag):
    def likelihood(p, x):
        before = jnp.concatenate([jnp.zeros(lag), x["value"][: 2_000 - lag]]) if lag else x["value"]
        return dist.Normal(0.8 * before[: len(x["value"])] + p["effect"][x["season"]], 1.0)

    prior = {"effect": dist.Normal(0.0, 1.0).expand((1_200,))}
    x = {"value": RNG.normal(size=2_000), "season": np.arange(2_000) % 1_200}
    target = credo.Model(prior, likelihood).given(x, RNG.normal(size=2_000))
    assert (blocks.in_blocks(target, 1_000_000).rows_at_once is None) == bool(lag)


def test_wide_rows_are_summed_draw_by_draw(posterior, monkeypatch):
    together = posterior.predict(X, credo.MonteCarlo(64))
    monkeypatch.setattr(stream, "WIDE", 0)
    apart = posterior.predict(X, credo.MonteCarlo(64))
    assert apart._stream.law.is_streamed
    assert not together._stream.law.is_streamed
    for name in ("mean", "aleatoric", "epistemic", "mutual_information"):
        assert np.allclose(getattr(together, name), getattr(apart, name), rtol=1e-9, atol=1e-12), name
    assert np.allclose(together.log_prob(LABELS), apart.log_prob(LABELS), rtol=1e-12)


def test_logits_of_many_classes_are_drawn(posterior, monkeypatch):
    formed = posterior.predict(X, credo.Linearised())
    monkeypatch.setattr(linearised, "MANY_OUTPUTS", 5)
    drawn = posterior.predict(X, credo.Linearised())
    error = 4 * np.sqrt(formed.epistemic / 256)  # four standard errors of 256 draws; 240 numbers
    assert np.all(np.abs(drawn.mean - formed.mean) < error + 1e-3)
    assert np.allclose(drawn.epistemic, formed.epistemic, rtol=0.4, atol=1e-4)


def test_covariances_are_found_again_by_chunks_where_they_cannot_be_held(posterior, monkeypatch):
    held = posterior.predict(X, credo.Linearised())
    monkeypatch.setattr(projection, "MAX_HELD", 0)
    again = posterior.predict(X, credo.Linearised())
    assert again._stream.rows.mean is None
    assert np.allclose(held.probs, again.probs, rtol=1e-9)
    assert np.allclose(held.mutual_information, again.mutual_information, rtol=1e-6, atol=1e-9)


def test_draws_too_long_to_keep_still_tell_k_hat(monkeypatch):
    from credo.methods.laplace import proposal

    target = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"], 1.0)).given(y=X[:, 0])
    monkeypatch.setattr(proposal, "MOST_HELD", 0)
    figures = credo.fit(target, credo.Laplace(), key=0).verdict.figures
    assert figures["pareto_k"] < 0.5  # exact: all weights are equal
    assert "mean_shift" not in figures
    heavy = credo.Model.from_log_density(
        lambda p: -0.6 * jnp.sum(jnp.log1p(p["x"] ** 2)), {"x": dist.constraints.real}, shape={"x": (10,)}
    )
    assert credo.fit(heavy.given(), credo.Laplace(), key=0).verdict.figures["pareto_k"] > 0.7


def test_structures_that_do_not_fit_are_refused_before_any_work():
    target = softmax_network(6, 500).given(RNG.normal(size=(4, 500)), np.arange(4))
    with pytest.raises(credo.CredoError, match=r"Dense\(\) needs .* GB for 3,000 parameters; .*Diagonal\(\) needs"):
        credo.fit(target, credo.Laplace(structure=credo.laplace.Dense()), max_memory=20_000_000)


@pytest.mark.parametrize("curvature", [None, credo.ExactHessian(), credo.GaussNewton()])
def test_kronecker_is_offered_where_its_curvature_is_in_force(curvature):
    """And without a matrix of its own it is what Diagonal() needs."""
    target = credo.Model(
        {"w": dist.Normal(0.0, 1.0).expand([3, 300])}, lambda p, x: dist.Normal(jnp.sum(x @ p["w"], axis=1), 1.0)
    ).given(X, X[:, 0])
    with pytest.raises(credo.CredoError, match=r"Dense\(\) needs .*Diagonal\(\) needs") as refused:
        credo.fit(target, credo.Laplace(curvature=curvature), max_memory=5_000_000)
    assert ("Kronecker()" in str(refused.value)) == isinstance(curvature, credo.GaussNewton)


NETWORK = credo.nn.BayesianNetwork(
    lambda params, x: jnp.tanh(x @ params["in"]) @ params["out"],
    {"in": RNG.normal(size=(3, 500)), "out": RNG.normal(size=(500, 1))},
    head=credo.nn.Gaussian(0.1),
).given(X, X[:, 0])
COEFFICIENTS = credo.Model(
    {"w": dist.Normal(0.0, 1.0).expand([2_000])}, lambda params, x: dist.Normal(x @ params["w"], 1.0)
).given(np.ones((4, 2_000)), np.zeros(4))

WIDE = credo.Model(
    {"w": dist.Normal(0.0, 1.0).expand([40_000])}, lambda params, x: dist.Normal(x @ params["w"], 1.0)
).given(np.ones((4, 40_000)), np.zeros(4))


@pytest.mark.parametrize(
    ("method", "target", "needed", "instead"),
    [
        (credo.NUTS(), WIDE, (60, 240), "chains=1"),
        (credo.HMC(), WIDE, (30, 160), "chains=1"),
        (credo.ADVI(family=credo.FullRank()), NETWORK, (150, 400), r"MeanField\(\)"),
        (credo.ADVI(family=credo.FullRank()), COEFFICIENTS, (500, 1_500), r"MeanField\(\)"),
        (credo.NaturalGradient(family=credo.FullRank()), COEFFICIENTS, (500, 1_500), r"MeanField\(\)"),
        (credo.BatchAndMatch(), NETWORK, (300, 1_000), r"LowRank\(\)"),
        (credo.DADVI(family=credo.FullRank(), num_final_draws=1), NETWORK, (300, 1_500), r"MeanField\(\)\)"),
        (credo.DADVI(num_final_draws=50_000), NETWORK, (1_000, 10_000), r"DADVI\(num_final_draws=2\)"),
        (credo.Pathfinder(), NETWORK, (70, 250), r"Pathfinder\(num_draws=1\)"),
        (credo.SMC(num_particles=20_000), COEFFICIENTS, (1_500, 4_000), r"SMC\(num_particles=70\)"),
        (credo.SVGD(num_particles=2_000), COEFFICIENTS, (400, 1_600), r"SVGD\(num_particles=1\)"),
        (credo.VBLL(), NETWORK, (20, 40), r"VBLL\(covariance='diagonal'\)"),
        (credo.MCDropout(), NETWORK, (0.6, 4), r"MCDropout\(batch_size=4\)"),
        (credo.GaussianDropout(), NETWORK, (0.6, 4), r"GaussianDropout\(batch_size=4\)"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_fits_that_do_not_fit_are_refused_before_any_work(monkeypatch, method, target, needed, instead):
    """``needed``: MB about what was measured, up to a factor of two."""
    monkeypatch.setattr(memory, "budget", lambda max_memory=None: 200_000)
    with pytest.raises(credo.CredoError, match=f"{instead} needs") as refused:
        credo.fit(target, method)
    number, unit = re.search(r"needs ([\d.]+) (kB|MB|GB) for", str(refused.value)).groups()
    assert needed[0] <= float(number) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[unit] <= needed[1]


def test_fewer_chains_are_at_work_together_where_memory_asks_for_it(monkeypatch):
    pools = []
    monkeypatch.setattr(crew, "ThreadPoolExecutor", lambda n: pools.append(n) or ThreadPoolExecutor(n))
    monkeypatch.setattr(crew, "num_cores", lambda: 2)
    method, sizes = credo.HMC(num_warmup=4, num_draws=3, chains=2, num_steps=2), {}
    for max_memory in (None, 100_000_000):
        found = credo.fit(WIDE, method, key=1, max_memory=max_memory, progress=False)
        sizes[max_memory], pools[:] = (max(pools), pools[-1]), []
        expected = found.kind.positions if max_memory is None else expected
        np.testing.assert_array_equal(found.kind.positions, expected)
    assert sizes == {None: (2, 2), 100_000_000: (2, 1)}


@pytest.mark.parametrize("method", [credo.ADVI(), credo.DADVI(), credo.Pathfinder(), credo.BatchAndMatch()])
def test_no_more_rounds_of_draws_are_weighed_together_than_memory_holds(monkeypatch, method):
    correct, asked = measuring.correct, []

    def watched(*args):
        asked.append(args[5])
        return correct(*args)

    monkeypatch.setattr(measuring, "correct", watched)
    target = credo.Model({"w": dist.Gamma(2.0, 1.0)}, lambda p, x: dist.Poisson(p["w"])).given(y=np.arange(4))
    credo.fit(target, method, key=0, max_memory=int(3.5 * of_draws(2_000, 1)))
    credo.fit(target, method, key=0)
    assert asked == [3, MAX_ROUNDS]


def test_an_array_counts_until_its_last_use():
    def chain(x):
        for _ in range(10):
            x = jnp.sin(x)
        return jnp.sum(x)

    def kept(x):
        parts = [jnp.sin(x + i) for i in range(10)]
        return sum(parts)

    def returned(x):
        return [jnp.sin(x + i) for i in range(10)]

    x = jnp.zeros(1_000, jnp.float32)
    assert memory.peak(returned, x) >= 10 * 4_000
    assert memory.peak(chain, x) <= 2 * 4_000 + 8
    assert 10 * 4_000 <= memory.peak(kept, x) <= 13 * 4_000
    assert memory.footprint(chain, x) >= 10 * 4_000


def test_draws_are_weighed_in_the_memory_of_gradients():
    from credo.methods.particles.importance import MAX_BATCH, evaluations_at_once, values_at_once

    x, y = np.zeros((50_000, 3)), np.zeros(50_000)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda p, x: dist.Normal(jnp.sin(x @ p["w"]), 1.0))
    with double():
        target = model.given(x, y).flat()
        few = evaluations_at_once(target, 2**26)
        many = values_at_once(target, few)
        assert few < many <= MAX_BATCH
        assert many * memory.peak(lambda t, u: t.log_density(u), target, jnp.zeros(3)) <= 2**26


def test_branches_of_a_choice_are_counted():
    def product(x):
        return jnp.sum(jnp.outer(x, x) @ jnp.outer(x, x))

    def choice(x):
        return jax.lax.cond(x[0] > 0, product, lambda x: 0.0, x)

    for measure in (memory.footprint, memory.peak):
        assert measure(choice, jnp.ones(100)) >= measure(product, jnp.ones(100))
