"""The evidence of hyperparameters from the few directions of few data: that of the whole matrix, at any size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from cases import first_of
from credo.linalg.blocks import BlockDiagonal
from credo.methods.laplace import gram, look
from credo.methods.laplace.curvature import ExactHessian, GaussNewton
from credo.methods.laplace.gram import Gram, serves
from credo.methods.laplace.look import Look
from credo.methods.laplace.network import _said_of_factors
from credo.methods.laplace.pieces import DensePieces, LowRankPieces
from credo.methods.laplace.prior_gain import share_of
from credo.nn import BayesianNetwork, Categorical, Gaussian, Isotropic, PerLayer, ScaleMixture
from credo.precision import double

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 3))
Y = np.sin(2 * X[:, 0]) + 0.3 * RANDOM.normal(size=30)
WEIGHTS = [
    {"w": RANDOM.normal(size=shape) / np.sqrt(shape[0]), "b": np.zeros(shape[1])}
    for shape in ((3, 12), (12, 8), (8, 1))
]


def apply(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[:, 0]


def regression(prior=None, **data):
    model = BayesianNetwork(apply, WEIGHTS, head=Gaussian(dist.HalfNormal(1.0)), prior=prior)
    return model.given(X, Y, **data)


def classes():
    def outputs(params, x):
        z = apply(params, x)
        return jnp.stack([z, jnp.zeros_like(z), -z], axis=1)

    model = BayesianNetwork(outputs, WEIGHTS, head=Categorical(), prior=PerLayer(dist.LogNormal(0.0, 1.0)))
    return model.given(X, np.digitize(Y, [-0.5, 0.5]))


TARGETS = {
    "noise": regression,
    "layers": lambda: regression(PerLayer(dist.LogNormal(0.0, 1.0))),
    "weights of rows": lambda: regression(weights=1 + np.arange(30) % 3),
    "classes": classes,
}


@pytest.fixture
def large(monkeypatch):
    """As if 161 weights were many."""
    monkeypatch.setattr(look, "UP_TO_DENSE", 50)


# algebra ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [np.zeros(9, int), np.arange(9) // 5, np.arange(9)], ids=["one", "two", "all"])
def test_pieces_are_those_of_the_whole_matrix(groups):
    random = np.random.default_rng(1)
    U, s = np.linalg.qr(random.normal(size=(9, 4)))[0], np.array([3.0, 1.0, 0.2, 0.0])
    P, g, c = np.exp(random.normal(size=9))[groups], random.normal(size=9), 1.7
    with double():
        ours = LowRankPieces.of(s, U, groups)
        assert (ours.grams is None) == (groups.max() in (0, 8))  # one group needs none, and many would be dear
        whole = DensePieces(jnp.asarray(U @ np.diag(s) @ U.T), None, None)
        for name, given in (("log_det", ()), ("solve", (g,))):
            one, other = (getattr(each, name)(c, jnp.asarray(P), *given) for each in (ours, whole))
            np.testing.assert_allclose(one, other, rtol=1e-10)
        covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
        scales = [each.scale(c, P, covariance).dense() for each in (ours, whole)]
        one, other = (S @ S.T for S in scales)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", TARGETS)
def test_the_directions_are_those_of_the_whole_matrix(name):
    """Of the likelihood alone, in units of the outputs where all of it is far below and above one."""
    with double():
        target = TARGETS[name]().flat()
        u = 0.3 * RANDOM.normal(size=target.dim)
        k = target.dim - 161
        few, whole = (
            Look(structure, credo.laplace.All(), GaussNewton(), target, 32).pieces(u, k, np.zeros(161, int))
            for structure in (Gram(), credo.laplace.Dense())
        )
    assert isinstance(few, LowRankPieces)
    H = (few.vectors * few.values) @ few.vectors.T
    np.testing.assert_allclose(H, whole.matrix, rtol=1e-9, atol=1e-10 * np.max(np.abs(H)))
    assert np.all(few.values >= 0)
    np.testing.assert_allclose(few.values, whole.values[::-1][: len(few.values)], atol=1e-9 * np.max(few.values))


# fits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", first_of([None, credo.laplace.Diagonal()]))
@pytest.mark.parametrize("name", first_of(TARGETS))
def test_hyperparameters_are_those_that_the_whole_matrix_gives(name, structure, large):
    target, label = TARGETS[name](), "Kronecker" if structure is None else "Diagonal"
    found = {}
    for each in (structure, credo.laplace.Dense()):
        posterior = credo.fit(target, credo.Laplace(structure=each, num_steps=0), key=0, progress=False)
        found[posterior.info["structure"]] = {n: v for n, v in posterior.mean().items() if n != "weights"}
        is_own = each == credo.laplace.Dense()
        assert any("tuned by the evidence of Dense()" in said for said in posterior.verdict.sentences) != is_own
    assert set(found) == {label, "Dense"}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found[label], found["Dense"])


@pytest.mark.slow
def test_noise_is_not_taken_for_what_weights_explain(large, monkeypatch):
    """Factors count more directions than there are rows: by their evidence the noise was that of constant outputs."""
    method = credo.Laplace()
    noise = float(credo.fit(regression(), method, key=0, progress=False).mean()["noise"])
    monkeypatch.setattr(gram, "MOST_ROWS", 0)
    by_factors = float(credo.fit(regression(), method, key=0, progress=False).mean()["noise"])
    assert noise < 0.45 < by_factors


def test_other_priors_are_still_looked_at(large):
    """Of weights beside hyperparameters of their own: what the data determine is the same by either form."""
    target = regression()
    posterior = credo.fit(target, credo.Laplace(), key=0, progress=False)
    assert "num_determined" in posterior.verdict.figures
    assert "prior_gain" not in posterior.verdict.figures  # 12 nats by factors, of weights near zero; −2.8 by Dense()
    beside, mean = posterior.kind.scale, np.asarray(posterior.kind.mean)
    assert isinstance(beside, BlockDiagonal)
    one, other = share_of(beside, mean, 1, 1.0), share_of(beside.blocks[1], mean[1:], 0, 1.0)
    np.testing.assert_array_equal(one.r, other.r)
    assert 0 < np.sum(1 - one.r) < 161


def test_float32(large):
    wide, narrow = (
        credo.fit(regression(), credo.Laplace(num_steps=0), key=0, precision=precision, progress=False).mean()["noise"]
        for precision in ("float64", "float32")
    )
    assert float(narrow) == pytest.approx(float(wide), rel=1e-2)


# where it serves ----------------------------------------------------------------------------------------------------


def test_where_it_serves(monkeypatch):
    target = regression()
    assert serves(target, GaussNewton(), 2)
    assert not serves(target, ExactHessian(), 2)
    assert not serves(dataclasses.replace(target, size=90), GaussNewton(), 2)  # more rows than weights
    assert not serves(regression(ScaleMixture()), GaussNewton(), 2)
    for name in ("MOST_ROWS", "MOST_NUMBERS"):
        with monkeypatch.context() as patch:
            patch.setattr(gram, name, 59)
            assert not serves(target, GaussNewton(), 2)


def test_data_that_say_nothing():
    """Outputs without slopes: no direction, and no error."""
    with double():
        target = regression().flat()
        blank = dataclasses.replace(target, x=np.zeros((30, 3)))
        s, U = Gram().directions(GaussNewton(), blank, np.zeros(target.dim))
        pieces = LowRankPieces.of(s, U[-161:], np.zeros(161, int))
        assert np.isfinite(float(pieces.log_det(1.0, jnp.ones(161))))


def test_factors_that_count_more_directions_than_there_are_outputs_are_told():
    target, structures = regression().flat(), (credo.laplace.Kronecker(), credo.laplace.Dense())
    with double():
        few, whole = (_said_of_factors(structure, target, np.zeros(target.dim), 1) for structure in structures)
        many = _said_of_factors(structures[0], dataclasses.replace(target, size=161), np.zeros(target.dim), 1)
    assert "of 161 weights they count more directions than the 30 outputs" in few[0]
    assert whole == many == ()


@pytest.mark.parametrize("most_rows", [2_000, pytest.param(10, marks=pytest.mark.slow)])
def test_an_evidence_of_factors_that_count_too_much_is_said(most_rows, large, monkeypatch):
    monkeypatch.setattr(gram, "MOST_ROWS", most_rows)
    posterior = credo.fit(regression(), credo.Laplace(credo.laplace.Kronecker(), num_steps=0), key=0, progress=False)
    said = [s for s in posterior.verdict.sentences if "of 161 weights they count more directions than the 30" in s]
    assert bool(said) == (most_rows == 10)


def on_columns(params, x):
    return x @ params["w"]


@pytest.mark.parametrize(
    "structure",
    [
        pytest.param(None, id="Dense"),
        pytest.param(credo.laplace.Kronecker(), id="Kronecker", marks=pytest.mark.slow),
        pytest.param("gram", id="Gram"),
    ],
)
@pytest.mark.parametrize("precision", first_of(["float32", "float64"]))
@pytest.mark.parametrize("other", first_of([1e6, 1e-3]))
def test_hyperparameters_do_not_hang_on_units(structure, precision, other):
    """Columns given twice, of which data leave half the directions free: exact by the singular values."""
    rng = np.random.default_rng(0)
    num, dim, sd = (30, 40, 0.1) if structure == "gram" else (300, 8, 1e-2)
    x = rng.normal(size=(num, dim))
    x = np.c_[x, x]
    y = x @ rng.normal(size=2 * dim) + sd * rng.normal(size=num)
    w = np.linalg.lstsq(x, y, rcond=1e-10)[0]
    found = []
    for unit in (1.0, other):
        network = BayesianNetwork(
            on_columns,
            {"w": w * unit},
            head=Gaussian(dist.LogNormal(np.log(unit), 4.0)),
            prior=Isotropic(dist.LogNormal(-2 * np.log(unit), 4.0)),
        )
        start = {"noise": sd * unit, "precision": unit**-2, "weights": {"w": w * unit}}
        method = credo.Laplace(None if structure == "gram" else structure)
        posterior = credo.fit(network.given(x, y * unit), method, start=start, precision=precision, progress=False)
        α, noise = float(posterior.mean()["precision"]) * unit**2, float(posterior.mean()["noise"]) / unit
        determined = posterior.verdict.figures["num_determined"]
        found.append([posterior.log_evidence.value + num * np.log(unit), np.log(α), np.log(noise), determined])
    near = 1e-3 if precision == "float64" else 5e-3  # the weights' mode is found to less there
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=near)
    if structure != "gram":
        assert found[0][-1] == pytest.approx(dim, rel=1e-3)


def convolved(p, x):
    z = jax.lax.conv_general_dilated(x, p["k"], (1, 1), "VALID")
    return (jnp.tanh(z).mean((2, 3)) @ p["w"])[:, 0]


def scanned(p, x):
    x = jnp.asarray(x)

    def step(z, row):
        return jnp.tanh(z @ p["k"][0, 0] + row), None

    start = jnp.zeros_like(x[:, 0, 0, :3])
    return (jax.lax.scan(step, start, jnp.moveaxis(x[:, 0, :, :3], 1, 0))[0][:, :2] @ p["w"])[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("apply", [convolved, scanned])
def test_networks_whose_numbers_must_be_of_one_kind_are_tuned_in_single_precision(apply):
    """Convolutions and loops take no float32 beside a float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1, 6, 6))
    weights = {"k": 0.5 * rng.normal(size=(2, 1, 3, 3)), "w": rng.normal(size=(2, 1))}
    y = x.mean((1, 2, 3)) * 6 + 0.3 * rng.normal(size=60)
    target = BayesianNetwork(apply, weights, head=Gaussian(dist.HalfNormal(1.0))).given(x, y)
    method = credo.Laplace(tune=True, num_steps=0)
    one, other = (credo.fit(target, method, precision=each, progress=False) for each in ("float64", "float32"))
    np.testing.assert_allclose(one.mean()["noise"], other.mean()["noise"], rtol=1e-4)
