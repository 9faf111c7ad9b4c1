"""Networks of many outputs: no matrix of all pairs of them where it is not asked for, and columns chosen by cost."""

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import memory
from credo.methods.laplace.curvature import (
    EmpiricalFisher,
    GaussNewton,
    SampledFisher,
    affordable,
    likelihood_product,
)
from credo.methods.laplace.look import beside_unit, choose
from credo.methods.laplace.polish import LARGE, LEAST
from credo.model.data import Rows
from credo.model.fisher import fisher_product
from credo.model.heads import head_of
from credo.nn import BayesianNetwork, Categorical
from credo.precision import double

RANDOM = np.random.default_rng(7)


def apply(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


def target_of(num_rows: int, *sizes: int):
    params = {
        name: RANDOM.normal(size=pair) for name, pair in zip(("in", "out"), itertools.pairwise(sizes), strict=True)
    }
    network = BayesianNetwork(apply, params, head=Categorical())
    return network.given(RANDOM.normal(size=(num_rows, sizes[0])), RANDOM.integers(sizes[-1], size=num_rows)).flat()


def test_products_and_columns_of_classes_are_those_of_the_root():
    """F v = L Lᵀ v without L, and the mean of E Eᵀ over many columns is the identity."""
    target = target_of(4, 2, 3, 5)
    rows = Rows(target.x, target.y, np.array([1.0, 2.0, 0.5, 0.0]))
    with double():
        u = RANDOM.normal(size=target.dim)
        L = np.asarray(GaussNewton().roots(target, u, rows))
        v = RANDOM.normal(size=(4, 5))
        expected = np.einsum("mkc,mjc,mj->mk", L, L, v)
        np.testing.assert_allclose(GaussNewton().fisher.times(target, u, rows)(v), expected, atol=1e-12)
        few = SampledFisher(4)
        S = np.asarray(few.roots(target, u, rows))
        np.testing.assert_allclose(
            few.fisher.times(target, u, rows)(v), np.einsum("mkc,mjc,mj->mk", S, S, v), atol=1e-12
        )
        assert S.shape == (4, 5, 4)
        many = np.asarray(SampledFisher(20_000).roots(target, u, rows))
    error = np.einsum("mkc,mjc->mkj", many, many) - np.einsum("mkc,mjc->mkj", L, L)
    assert np.max(np.abs(error)) < 6 / np.sqrt(20_000)  # entries of L are below one: 100 numbers, six standard errors


def test_a_thousand_classes_need_no_matrix_of_a_million_pairs_a_row():
    target = target_of(100, 3, 4, 1_000)
    pairs = 100 * 1_000**2 * 8
    with double():
        u = jnp.zeros(target.dim)
        rows = Rows(target.x, target.y, np.ones(100))
        assert memory.footprint(lambda u: SampledFisher(2).roots(target, u, rows), u) < pairs / 10
        for curvature in (GaussNewton(), EmpiricalFisher(), SampledFisher(2)):
            product = lambda u, curvature=curvature: likelihood_product(curvature, target, u, None)(u)  # noqa: E731
            assert memory.footprint(product, u) < pairs / 10, curvature


def test_columns_are_chosen_by_cost():
    assert isinstance(affordable(target_of(50, 3, 4, 5)), GaussNewton)
    assert isinstance(affordable(target_of(50, 3, 4, 100)), GaussNewton)  # many outputs, and cheap
    assert affordable(target_of(1_000, 64, 100, 1_000)) == SampledFisher(32)
    assert affordable(target_of(20_000, 4, 10, 1_000)) == SampledFisher(5)  # of many rows fewer say as much


def test_a_large_last_layer_is_of_kronecker_form_unless_told_otherwise():
    target = target_of(3, 2, 40, 100)
    method = credo.Laplace(subset=credo.laplace.LastLayer())
    u = np.concatenate([np.ravel(target.model.start["weights"][name]) for name in ("in", "out")])
    with double():
        look, said = choose(method, target, GaussNewton(), 1, u)
        assert type(look.structure).__name__ == "Kronecker"
        shape = look(beside_unit(1.0), u)
        assert shape.scale.rank == 4_000
        assert shape.coordinate >= 80  # of all: the first layer is known
        assert not said
        small, _ = choose(method, target_of(3, 40, 40, 5), GaussNewton(), 1, np.zeros(1_800))
        assert type(small.structure).__name__ == "Dense"
        _, said = choose(method, target, SampledFisher(32), 1, u)
    assert "32 random columns" in said[0]


DISTRIBUTIONS = {
    "normal": dist.Normal(RANDOM.normal(size=4), RANDOM.uniform(1, 2, size=4)),
    "columns of normal": dist.Normal(RANDOM.normal(size=(4, 3)), RANDOM.uniform(1, 2, size=(4, 3))),
    "columns of student": dist.StudentT(5.0, RANDOM.normal(size=(4, 2)), 0.7).to_event(1),
    "columns of poisson": dist.Poisson(RANDOM.uniform(1, 2, size=(4, 3))).to_event(1),
    "classes": dist.CategoricalLogits(RANDOM.normal(size=(4, 3))),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_products_with_the_information_of_a_row_are_those_of_its_matrix(name):
    distribution = DISTRIBUTIONS[name]
    head = head_of(distribution)
    assert head is not None
    with double():
        z = head.split(distribution)
        v = RANDOM.normal(size=z.shape)
        expected = jnp.einsum("mij,mj->mi", head.fisher(z, distribution), v)
        np.testing.assert_allclose(fisher_product(head, z, distribution)(v), expected, rtol=1e-12, atol=1e-12)


def test_factors_that_do_not_fit_make_way_for_a_diagonal_and_the_least_is_refused():
    target = target_of(3, 40, 40, 50)
    u = np.zeros(target.dim)
    look, said = choose(credo.Laplace(), target, GaussNewton(), 1, u, 100_000)
    assert type(look.structure).__name__ == "Diagonal"
    assert "a layer has 50 inputs or outputs" in said[0]
    look, said = choose(credo.Laplace(), target, GaussNewton(), 1, u, 1_000_000)
    assert type(look.structure).__name__ == "Kronecker"
    wide = target_of(3, 40, 200, 200)
    for subset in (credo.laplace.All(), credo.laplace.LastLayer()):
        with pytest.raises(credo.CredoError, match=r"needs .* for 48,000 parameters; the budget is 1.0 MB"):
            credo.fit(wide, credo.Laplace(subset=subset), max_memory=1_000_000)


@pytest.mark.slow  # three fits
def test_few_columns_predict_as_all_outputs_do():
    """Of 40 classes, 32 columns a row: epistemic sds of the logits within a tenth of those of all columns."""
    target = target_of(200, 5, 30, 40)
    mode = credo.fit(target, credo.MAP(), progress=False)  # else each is polished to a place of its own
    posteriors = {
        curvature: credo.fit(
            target,
            credo.Laplace(structure=credo.laplace.Kronecker(), curvature=curvature, num_steps=0),
            key=0,
            start=mode,
            progress=False,
        )
        for curvature in (GaussNewton(), SampledFisher(32), SampledFisher(1))
    }
    x = RANDOM.normal(size=(50, 5))
    covariances = [p.predict(x, credo.Quadrature())._stream.rows.covariance for p in posteriors.values()]
    sds = [np.sqrt(np.diagonal(each, axis1=1, axis2=2)) for each in covariances]
    errors = [np.mean(np.abs(np.log(each / sds[0]))) for each in sds[1:]]
    print(errors)
    assert errors[0] < 0.1
    assert errors[0] < 0.5 * errors[1]


def test_expensive_gradients_of_the_polish_are_few():
    assert LARGE / (1_000 * 1_000_000) < LEAST < 100
    assert LARGE / (1_000 * 100_000) > 100  # a tenth of a second each: as many as ever
