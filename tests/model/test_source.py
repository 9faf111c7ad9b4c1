"""Data in batches and outside of memory: the same fits, number for number, and sentences where a loader is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from cases import first_of
from credo.model import model as model_page
from credo.model import source
from credo.precision import double

N = 300
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -2.0] + 0.5 * RNG.normal(size=N)
MODEL = credo.Model({"w": dist.Normal(0.0, 3.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 0.5))
WEIGHTS = {"in": RNG.normal(size=(2, 4)), "out": {"w": RNG.normal(size=(4, 1)), "b": np.zeros(1)}}


def apply(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]["w"] + params["out"]["b"]


NETWORK = credo.nn.BayesianNetwork(apply, WEIGHTS, head=credo.nn.Gaussian(0.5))
TUNED = credo.nn.BayesianNetwork(
    apply, WEIGHTS, head=credo.nn.Gaussian(), prior=credo.nn.Isotropic(dist.LogNormal(0.0, 3.0))
)


def batches(number: int = N, width: int = 64):
    for first in range(0, number, width):
        yield X[first : min(first + width, number)], Y[first : min(first + width, number)]


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "AT_ONCE", 1_700)  # bytes: blocks of 70 rows of two inputs, and one of 20
        yield


@pytest.fixture(scope="module")
def on_disk(_small_blocks):
    return MODEL.given(credo.Loader(batches(), size=N, in_memory=False))


def test_batches_that_fit_become_arrays():
    target = MODEL.given(credo.Loader(batches(), size=N))
    assert target.source is None
    assert np.array_equal(target.x, X)
    assert target.size == N


SGLD = credo.SGLD(chains=1, num_warmup=2, num_draws=4, num_steps=3, batch_size=32, step_size=0.1)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (MODEL, SGLD),
        (MODEL, credo.MAP(batch_size=50, num_steps=40)),
        (MODEL, credo.DeepEnsemble(members=2, batch_size=32, num_steps=30)),
        (MODEL, credo.NaturalGradient(batch_size=50, max_steps=60)),
        (NETWORK, credo.VBLL(batch_size=32, num_steps=30)),
        *(
            pytest.param(model, method, marks=pytest.mark.slow)
            for model, method in (
                (MODEL, credo.ADVI(batch_size=50, max_steps=60)),
                (MODEL, credo.SWAG(num_snapshots=3, rank=2, batch_size=32, num_steps=20, every=4)),
                (NETWORK, credo.MCDropout(batch_size=32, num_steps=30)),
                (NETWORK, credo.GaussianDropout(batch_size=32, num_steps=30)),
            )
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_rows_read_from_disk_give_the_fit_of_arrays(model, method):
    there = credo.fit(model.given(credo.Loader(batches(), size=N, in_memory=False)), method, key=1)
    here = credo.fit(model.given(X, Y), method, key=1)
    assert there.target.source is None  # a posterior keeps no files open
    for a, b in zip(jax.tree.leaves(there.kind), jax.tree.leaves(here.kind), strict=True):
        assert np.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert np.allclose(there.predict(X[:3]).mean, here.predict(X[:3]).mean)
    assert there.info.get("bound") == pytest.approx(here.info.get("bound"))


LAPLACE = {
    "the model": (MODEL, credo.Laplace()),
    "Gauss-Newton": (MODEL, credo.Laplace(curvature=credo.laplace.GaussNewton(), structure=credo.laplace.Diagonal())),
    "network": (NETWORK, credo.Laplace(num_steps=40)),
    "last layer": (NETWORK, credo.Laplace(num_steps=40, subset=credo.laplace.LastLayer())),
    "low rank": (NETWORK, credo.Laplace(num_steps=40, structure=credo.laplace.LowRank(3))),
    "factors": (NETWORK, credo.Laplace(num_steps=40, structure=credo.laplace.Kronecker())),
    "tuned": (TUNED, credo.Laplace(num_steps=0)),
    "mixture": (NETWORK, credo.MixtureOfLaplaces(members=2, num_steps=400)),
}


@pytest.mark.parametrize("is_weighted", [False, True], ids=["rows", "weighted rows"])
@pytest.mark.parametrize("name", first_of(LAPLACE))
def test_laplace_reads_all_rows_of_files_at_every_turn(name, is_weighted):
    model, method = LAPLACE[name]
    rows = credo.Rows(X, Y, np.arange(N) % 3.0 if is_weighted else None)
    there, here = (
        credo.fit(model.given(credo.Loader(rows, in_memory=in_memory)), method, key=1, progress=False)
        for in_memory in (False, True)
    )
    for a, b in zip(jax.tree.leaves(there.mean()), jax.tree.leaves(here.mean()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    if name != "tuned":  # whose weights are no mode
        assert there.log_evidence.value == pytest.approx(here.log_evidence.value, abs=1e-6)
    assert (there.verdict.status, there.verdict.sentences) == (here.verdict.status, here.verdict.sentences)
    np.testing.assert_allclose(there.predict(X[:3]).sd, here.predict(X[:3]).sd, rtol=1e-5)


def test_laplace_by_solves_with_the_data_refuses_files(on_disk):
    with pytest.raises(credo.CredoError, match="multiplies by all data whenever its posterior is used"):
        credo.fit(on_disk, credo.Laplace(structure=credo.laplace.MatrixFree()))


def test_a_wrong_row_of_a_later_block_can_be_found():
    y = Y.copy()
    y[145] = np.nan
    with pytest.raises(credo.CredoError, match="the first in row 5.*counted from row 140 of the files") as refusal:
        MODEL.given(credo.Loader(credo.Rows(X, y), in_memory=False))
    assert "y has 1 " in str(refusal.value)


@pytest.mark.slow
def test_booleans_read_from_disk_are_booleans():
    """As whole numbers, ~x is true of every row."""
    model = credo.Model(
        {"b": dist.Normal(0.0, 3.0)}, lambda p, x: dist.BernoulliLogits(jnp.where(~x["on"], 0.0, p["b"] * x["z"]))
    )
    x, y = {"on": X[:, 0] > 0, "z": X[:, 1]}, Y > 0
    loader = credo.Loader(credo.Rows(x, y), in_memory=False)
    method = credo.ADVI(batch_size=50, max_steps=40)
    found, wanted = (
        credo.fit(target, method, key=1).mean()["b"] for target in (model.given(loader), model.given(x, y))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_density_of_all_rows_and_of_windows(on_disk):
    from credo.model.windows import shuffled, window

    with double():
        u, here = jnp.asarray([0.3, 0.1]), MODEL.given(X, Y).flat()
        there = on_disk.flat()
        for of in (jax.value_and_grad, jax.hessian):
            for a, b in zip(*(jax.tree.leaves(of(t.log_density)(u)) for t in (here, there)), strict=True):
                assert np.allclose(a, b, rtol=1e-9)
        mixed = shuffled(there, 7, np.random.default_rng(0))
        estimates = jax.lax.map(lambda i: mixed.log_density(u, window(mixed, 7, i)), jnp.arange(N))
        assert np.isclose(np.mean(estimates), here.log_density(u), rtol=1e-9)  # exactly unbiased, in any order


@pytest.mark.parametrize(("size", "words"), [(N + 5, "gave 300 rows"), (N - 5, "gave 300 rows by its batch 4")])
def test_a_loader_of_another_length_is_refused(size, words):
    with pytest.raises(credo.CredoError, match=words) as refused:
        MODEL.given(credo.Loader(batches(), size=size))
    assert f"{size}" in str(refused.value)


def test_batches_of_lists_and_empty_ones_are_batches():
    written = credo.Loader([(X[:2].tolist(), Y[:2].tolist()), (X[:0], Y[:0]), (X[2:5], Y[2:5])], size=5)
    rows = written.rows()
    np.testing.assert_array_equal(rows.x, X[:5])
    np.testing.assert_array_equal(rows.y, Y[:5])


def test_what_else_a_loader_may_get_wrong():
    spent = batches()
    list(spent)
    wrong = [
        (credo.Loader(spent), "no rows"),
        (credo.Loader([X[:3]]), "give \\(x, y\\)"),
        (credo.Loader([(X[:3], Y[:3]), (X[:3, :1], Y[:3])]), "Batch 1 has other columns"),
        (credo.Loader([(X[:3], Y[:2])]), "differ in length"),
        (credo.Loader([(X[:3], np.array([0.0, np.nan, 1.0]))], in_memory=False), "of a Loader, in what gives"),
    ]
    for loader, words in wrong:
        with pytest.raises(credo.CredoError, match=words):
            MODEL.given(loader)
    with pytest.raises(credo.CredoError, match="Rows"):
        credo.Loader((X, Y))
    for size in ("70", 0, 2.5):
        with pytest.raises(credo.CredoError, match="size is the number of rows"):
            credo.Loader(batches(), size=size)
    with pytest.raises(credo.CredoError, match="nothing beside it"):
        MODEL.given(credo.Loader(batches()), Y)


@pytest.mark.parametrize("error", [OSError("disk gone"), KeyboardInterrupt(), credo.CredoError("no such file")])
def test_an_error_of_the_loader_s_own_says_where(error):
    def failing():
        yield X[:8], Y[:8]
        yield X[:0], Y[:0]
        raise error

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - an interruption too
        MODEL.given(credo.Loader(failing(), size=40))
    if isinstance(error, OSError):
        said = "Reading batch 2 of the loader failed (OSError: disk gone), after 8 rows: "
        assert isinstance(caught.value, credo.CredoError)
        assert str(caught.value).startswith(said)
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error


def test_methods_that_need_all_rows_say_so(on_disk):
    with pytest.raises(credo.CredoError, match=r"NUTS\(\) reads arrays alone.*outside of memory"):
        credo.fit(on_disk, credo.NUTS())


@pytest.mark.slow
def test_mapped_files_larger_than_memory_are_read_by_rows(tmp_path, monkeypatch):
    for name, values in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", values.astype(np.float32))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    assert MODEL.given(x, y).source is None
    monkeypatch.setattr(source, "budget", lambda: 1_000)
    target = MODEL.given(x, y)
    assert target.source is not None
    posterior = credo.fit(target, credo.MAP(batch_size=50, num_steps=400), key=0)
    assert np.allclose(posterior.mean()["w"], [1.0, -2.0], atol=0.1)
    with pytest.raises(credo.CredoError, match="lie in a Loader"):
        posterior.predict()


def test_loader_spills_to_disk(monkeypatch):
    monkeypatch.setattr(source, "budget", lambda: 1_000)
    rows = credo.Loader(batches()).rows()
    assert isinstance(rows.y, np.memmap)
    assert np.array_equal(rows.x, X)
    assert model_page.Loader is credo.Loader


@pytest.mark.slow
def test_a_run_on_files_resumes_bit_for_bit(on_disk, tmp_path):
    whole = credo.fit(on_disk, SGLD, key=2, checkpoint=tmp_path / "run")
    again = credo.resume(tmp_path / "run", MODEL.given(credo.Loader(batches(), in_memory=False)))
    assert np.array_equal(whole.kind.positions, again.kind.positions)


def test_a_fit_of_arrays_knows_the_same_rows_in_files(tmp_path, monkeypatch):
    """They were "other data of the same length", and all of them were in memory while they were hashed."""
    kinds = (np.float64, np.float32, np.int32, bool)
    inputs = {"row": np.arange(N)} | {np.dtype(kind).name: (4 * X).astype(kind) for kind in kinds}
    model = credo.nn.BayesianNetwork(
        lambda p, x: apply(p, x["float64"] + x["float32"] + x["int32"] + x["bool"]),
        WEIGHTS,
        head=credo.nn.Gaussian(0.5),
    )
    ones = np.ones(N, int)  # as whole numbers, which weights need not be
    arrays, rows = model.given(inputs, Y, weights=ones), credo.Rows(inputs, Y.copy(), ones)
    method = credo.DeepEnsemble(members=2, batch_size=32, num_steps=4)
    fitted = credo.fit(arrays, method, key=1, checkpoint=tmp_path / "run", progress=False)
    fitted.save(tmp_path / "fit.credo")
    monkeypatch.setattr(source, "AT_ONCE", 4_000)
    files = model.given(credo.Loader(rows, in_memory=False))
    assert files.source is not None
    assert credo.load(tmp_path / "fit.credo", files).verdict == fitted.verdict
    resumed = credo.resume(tmp_path / "run", files, progress=False)
    jax.tree.map(np.testing.assert_array_equal, resumed.sample(1, 3), fitted.sample(1, 3))
    rows.y[-1] += 1e-9
    other = model.given(credo.Loader(rows, in_memory=False))
    with pytest.raises(credo.CredoError, match="other data of the same length"):
        credo.load(tmp_path / "fit.credo", other)


@pytest.mark.parametrize("name", ["laplace", "sgld"])
def test_a_fit_of_files_is_loaded_with_its_target(name, tmp_path, on_disk):
    """It was "made with 0 rows of data": what a posterior keeps of files are a few inputs."""
    fits = {
        "laplace": (NETWORK.given(credo.Loader(batches(), in_memory=False)), credo.Laplace(num_steps=20)),
        "sgld": (on_disk, SGLD),
    }
    target, method = fits[name]
    fitted = credo.fit(target, method, progress=False)
    fitted.save(tmp_path / "fit.credo")
    loaded = credo.load(tmp_path / "fit.credo", target)
    jax.tree.map(np.testing.assert_array_equal, loaded.sample(1, 3), fitted.sample(1, 3))
    loaded.save(tmp_path / "again.credo")
    assert credo.load(tmp_path / "again.credo", target).verdict.sentences == fitted.verdict.sentences
    other = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 0.5))
    with pytest.raises(credo.CredoError, match="another model|prior"):
        credo.load(tmp_path / "fit.credo", other.given(credo.Loader(batches(), in_memory=False)))
