"""Posteriors as files: every kind comes back to the bit, and what is wrong with a file or a model is said."""

import datetime
import functools
import json
import struct
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints

import credo
from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.factor import DiagonalPlusFactor
from credo.linalg.lowrank import LowRank
from credo.model.model import Model
from credo.nn import BayesianNetwork
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.files import load, save
from credo.posterior.flow.affine import AffineCoupling
from credo.posterior.flow.spline import SplineCoupling
from credo.posterior.kinds import Draws, Flow, Gaussian, Independent, Kind, Mixture, Point
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double
from credo.status import CredoError, Estimate, Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2))
Y = RNG.normal(size=6)


def likelihood(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def model(scale=1.0, noise=None, num_weights=2):
    prior = {"w": dist.Normal(0.0, scale).expand([num_weights]), "sigma": noise or dist.HalfNormal(1.0)}
    return Model(prior, likelihood, derived={"ratio": lambda w, sigma: w / sigma})


@functools.cache
def target():
    return model().given(X, Y)


def layers():
    """One of each kind, bent."""
    each = AffineCoupling.identity(3, 1, 4, float), SplineCoupling.identity(3, 2, 4, float, 5, 3.0)
    return jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), each)


def kinds():
    A, mean = RNG.normal(size=(3, 3)), RNG.normal(size=3)
    with double():
        low_rank = LowRank.from_factor(np.abs(mean), A[:, :1])
    gaussian = Gaussian(mean, Dense.from_covariance(A @ A.T))
    gamma = dist.InverseGamma(np.array(3.5), np.array(1 / 3))
    normal = dist.MultivariateNormal(np.array([0.1, 1 / 3]), covariance_matrix=np.eye(2) / 7)
    separate = dist.Normal(np.array([0.1, 1 / 3]), np.array([1.0, 2.0])).to_event(1)
    structure = target().structure
    diagonal = Diagonal(np.abs(mean[:1]))
    factor = DiagonalPlusFactor(np.abs(mean[:1]), A[:1, :1])
    blocks = Gaussian(mean[:2], BlockDiagonal((diagonal, factor), (((1, 2),), ((0, 1),))))
    return {
        "point": Point(mean),
        "dense": gaussian,
        "diagonal": Gaussian(mean, Diagonal(np.abs(mean))),
        "low rank": Gaussian(mean, low_rank),
        "draws": Draws(RNG.normal(size=(2, 7, 3))),
        "weighted draws": Draws(RNG.normal(size=(2, 7, 3)), np.log(RNG.dirichlet(np.ones(14))).reshape(2, 7)),
        "product": Product({"w": normal, "sigma": gamma}, structure),
        "product of events": Product({"w": separate, "sigma": dist.HalfNormal(2.0).expand([])}, structure),
        "flow": Flow(layers(), gaussian),
        "factors": Independent((LogGamma(mean[:1], A[0, :1]), Sticks(A[:2, :2])), (((1, 2),), ((0, 1), (2, 3)))),
        "independent": Independent((Point(mean[:1]), blocks), (((1, 2),), ((0, 1), (2, 3)))),
        "mixture": Mixture(np.log([0.25, 0.75]), (gaussian, Point(mean))),
    }


KINDS = kinds()


class Unknown(Kind):
    """A kind that no list of files' contents holds."""

    def sample_u(self, key):
        return np.zeros(3)

    def log_prob_u(self, u):
        return 0.0


def posterior(kind, of=None):
    return Posterior(
        kind,
        of or target(),
        verdict=Verdict("doubtful", {"max_r_hat": float("nan"), "num_draws": 4.0}, ("Draw longer.",)),
        info={
            "num_gradients": 12,
            "seconds": {"compile": 0.1, "total": np.float64(1 / 3)},
            "sample_stats": {"step_size": RNG.normal(size=(2, 7)), "diverging": np.array([[True, False]])},
            "nothing": None,
            "shape": (2, 7),
            "object": Verdict,
        },
        log_evidence=Estimate(-1 / 3, float("inf"), "monte carlo"),
    )


def arrays(kind):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(kind)]


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("give", ["nothing", "model", "target"])
def test_every_kind_comes_back_to_the_bit(name, give, tmp_path):
    saved = posterior(KINDS[name])
    save(saved, tmp_path / "p.credo")
    loaded = load(tmp_path / "p.credo", {"nothing": None, "model": model(), "target": target()}[give])
    assert type(loaded.kind) is type(saved.kind)
    for a, b in zip(arrays(saved.kind), arrays(loaded.kind), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert loaded.target.structure.leaves == saved.target.structure.leaves
    assert loaded.verdict.status == "doubtful"
    assert loaded.verdict.sentences == ("Draw longer.",)
    assert np.isnan(loaded.verdict.figures["max_r_hat"])
    assert loaded.log_evidence == saved.log_evidence
    assert loaded.info["seconds"] == {"compile": 0.1, "total": 1 / 3}
    assert loaded.info["nothing"] is None
    assert loaded.info["shape"] == (2, 7)
    assert "Verdict" in loaded.info["object"]
    np.testing.assert_array_equal(loaded.info["sample_stats"]["step_size"], saved.info["sample_stats"]["step_size"])
    assert loaded.info["sample_stats"]["diverging"].dtype == bool


def test_with_the_model_it_predicts_and_without_it_says_why_not(tmp_path):
    saved = posterior(KINDS["draws"])
    save(saved, tmp_path / "p.credo")
    expected = saved.predict(X).mean
    np.testing.assert_array_equal(load(tmp_path / "p.credo", target()).predict(X).mean, expected)
    with_model = load(tmp_path / "p.credo", model())
    np.testing.assert_array_equal(with_model.predict(X).mean, expected)
    with pytest.raises(CredoError, match="no inputs to fall back on: give x"):
        with_model.predict()
    with pytest.raises(CredoError, match=r"shape \(6, 1\)"):
        with_model.predict(X[:, :1])
    alone = load(tmp_path / "p.credo")
    with pytest.raises(CredoError, match="loaded without its model"):
        alone.predict(X)
    draws, same = saved.sample(3, 5), alone.sample(3, 5)
    np.testing.assert_array_equal(draws["w"], same["w"])
    np.testing.assert_array_equal(saved.draws["ratio"], alone.draws["ratio"])  # derived, by code that the file lacks
    np.testing.assert_array_equal(saved.mean()["sigma"], alone.mean()["sigma"])


@pytest.mark.parametrize("name", ["draws", "weighted draws"])
def test_derived_quantities_of_draws_survive_without_the_model(name, tmp_path):
    """In all that a posterior gives by name, to the bit, though the functions are code that the file lacks."""
    saved = posterior(KINDS[name])
    save(saved, tmp_path / "p.credo")
    alone = load(tmp_path / "p.credo")
    for answer in (lambda p: p.mean(), lambda p: p.sd(), lambda p: p.quantile([0.1, 0.9]), lambda p: p.sample(3, 40)):
        expected, found = answer(saved), answer(alone)
        assert set(found) == set(expected) == {"w", "sigma", "ratio"}
        for each in found:
            np.testing.assert_array_equal(found[each], expected[each])
    pd.testing.assert_frame_equal(alone.summary(), saved.summary())
    for each in ("w", "sigma", "ratio"):
        np.testing.assert_array_equal(alone.to_arviz()["posterior"][each], saved.to_arviz()["posterior"][each])
    assert "ratio" in alone.draws


@pytest.mark.parametrize("name", ["dense", "point"])
def test_without_draws_derived_quantities_are_left_out(name, tmp_path):
    save(posterior(KINDS[name]), tmp_path / "p.credo")
    alone = load(tmp_path / "p.credo")
    assert set(alone.mean()) == set(alone.sample(0, 2)) == {"w", "sigma"}
    assert list(alone.summary().index) == ["w[0]", "w[1]", "sigma"]
    assert set(alone.to_arviz()["posterior"].data_vars) == {"w", "sigma"}


def test_a_file_written_from_a_file_still_knows_its_model(tmp_path):
    save(posterior(KINDS["draws"]), tmp_path / "a.credo")
    save(load(tmp_path / "a.credo"), tmp_path / "b.credo")
    again = load(tmp_path / "b.credo", target())
    np.testing.assert_array_equal(again.kind.positions, KINDS["draws"].positions)
    assert "ratio" in load(tmp_path / "b.credo").draws
    with pytest.raises(CredoError, match="other data"):
        load(tmp_path / "b.credo", model().given(X + 1, Y))


def test_levels_of_groups_are_kept(tmp_path):
    def grouped(params, x):
        return dist.Normal(params["a"][x["g"]], 1.0)

    of = Model({"a": dist.Normal(0.0, 1.0).expand([3])}, grouped, groups={"g": "a"})
    table = pd.DataFrame({"g": ["u", "v", "w"]})
    saved = Posterior(Point(np.array([1.0, 2.0, 3.0])), of.given(table, np.zeros(3)), verdict=Verdict("pass"))
    saved.save(tmp_path / "p.credo")
    predictive = load(tmp_path / "p.credo", of).predict(pd.DataFrame({"g": ["w", "u"]}))
    assert predictive.mean.tolist() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (lambda: model(num_weights=3), "holds another model: its parameters are"),
        (lambda: model(noise=dist.Normal(0.0, 1.0)), "'sigma' had support"),
        (lambda: model().given(X[:5], Y[:5]), "made with 6 rows of data; these have 5"),
        (lambda: model().given(X, Y + 1), "other data of the same length"),
        (lambda: model(scale=2.0).given(X, Y), "model has changed"),
        (lambda: posterior(KINDS["point"]), "takes the model or the target"),
    ],
)
def test_a_wrong_model_is_refused(other, sentence, tmp_path):
    save(posterior(KINDS["point"]), tmp_path / "p.credo")
    with pytest.raises(CredoError, match=sentence):
        load(tmp_path / "p.credo", other())


def change_header(content: bytes, change) -> bytes:
    """The same file with another header, its lengths kept right."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    inner = json.loads(header["__metadata__"]["credo"])
    change(inner)
    header["__metadata__"]["credo"] = json.dumps(inner)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda content: content[:-3], "damaged"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "do not match their hash"),
        (lambda content: b"PK\x03\x04 something else entirely", "damaged or no file of Credo's"),
        (lambda content: b"", "damaged or no file of Credo's"),
        (lambda content: change_header(content, lambda h: h.update(version=9)), "newer Credo.*format 9"),
        (lambda content: change_header(content, lambda h: h.update(kind="checkpoint")), "not a posterior file"),
        (
            lambda content: change_header(content, lambda h: h["verdict"].update(status="pass")),
            "do not match their hash",
        ),
    ],
)
def test_a_spoilt_or_foreign_file_is_refused(spoil, sentence, tmp_path):
    path = tmp_path / "p.credo"
    save(posterior(KINDS["dense"]), path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CredoError, match=sentence):
        load(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(CredoError, match="no file"):
        load(tmp_path / "nothing.credo")
    with pytest.raises(CredoError, match="cannot be written"):
        save(posterior(KINDS["point"]), tmp_path / "no" / "folder" / "p.credo")
    save(posterior(KINDS["point"]), tmp_path / "p.credo")
    before = (tmp_path / "p.credo").read_bytes()
    with pytest.raises(CredoError, match="cannot hold Unknown"):
        save(posterior(Unknown()), tmp_path / "p.credo")
    assert (tmp_path / "p.credo").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["p.credo"]  # nothing half-written is left beside it


def test_what_no_file_can_hold_is_said(tmp_path):
    with pytest.raises(CredoError, match="cannot hold the distribution VonMises"):
        save(
            posterior(Product({"w": dist.VonMises(0.0, 1.0), "sigma": dist.HalfNormal(1.0)}, target().structure)),
            tmp_path / "p",
        )


def test_supports_that_depend_on_parameters_need_the_model(tmp_path):
    of = Model.from_log_density(
        lambda q: -(q["a"] ** 2) - q["b"], {"a": constraints.real, "b": lambda a: constraints.greater_than(a)}
    )
    save(Posterior(Point(np.zeros(2)), of.given(), verdict=Verdict("pass")), tmp_path / "p.credo")
    with pytest.raises(CredoError, match="depends on other parameters.*load it with the model"):
        load(tmp_path / "p.credo")
    assert load(tmp_path / "p.credo", of).mean()["b"] == 1.0


def test_single_precision_is_kept_and_the_data_still_recognised(tmp_path):
    single = target().cast(np.float32)
    saved = posterior(Point(np.array([0.1, 0.2, 0.3], np.float32)), single)
    save(saved, tmp_path / "p.credo")
    assert load(tmp_path / "p.credo", target()).kind.position.dtype == np.float32


# models without their data -------------------------------------------------------------------------------------------


def network(activation=jnp.tanh, scale=1.0, ending=lambda z: z, of=4):
    params = {"in": np.full((2, of), 0.9), "out": np.linspace(-0.5, 1, of)}

    def apply(params, x):
        return ending(activation(x @ params["in"]) @ params["out"])

    return BayesianNetwork(apply, params, head=credo.nn.Gaussian(0.3), prior=credo.nn.Isotropic(scale))


@pytest.mark.parametrize("precision", [None, "float32"])
def test_a_network_is_known_by_what_it_says(tmp_path, precision):
    of = network().given(X, Y)
    posterior = credo.fit(of, credo.Laplace(num_steps=0), precision=precision, progress=False)
    save(posterior, tmp_path / "p.credo")
    load(tmp_path / "p.credo", network())
    load(tmp_path / "p.credo", network(lambda z: jnp.sinh(z) / jnp.cosh(z)))  # the same function
    changed = {
        "says .* where it said .*activations": network(jax.nn.gelu),
        "log prior": network(scale=2.0),
        "says .* where": network(ending=lambda z: z * 1.001),
        "fails at inputs": network(lambda z: z[:, :3]),
    }
    for sentence, other in changed.items():
        with pytest.raises(CredoError, match=sentence):
            load(tmp_path / "p.credo", other)
    for other in (network(jax.nn.gelu), network(ending=lambda z: z * 1.1)):
        with pytest.raises(CredoError, match="log density"):
            load(tmp_path / "p.credo", other.given(X, Y))


def test_a_likelihood_is_known_by_what_it_says(tmp_path):
    save(Posterior(kinds()["dense"], target(), verdict=Verdict("pass")), tmp_path / "p.credo")
    prior = {"w": dist.Normal(0.0, 1.0).expand([2]), "sigma": dist.HalfNormal(1.0)}
    for sentence, other in {
        "was Normal and is Laplace": lambda p, x: dist.Laplace(x @ p["w"], p["sigma"]),
        "says .* where it said": lambda p, x: dist.Normal(jnp.abs(x @ p["w"]), p["sigma"]),
    }.items():
        with pytest.raises(CredoError, match=sentence):
            load(tmp_path / "p.credo", Model(prior, other))


@pytest.mark.parametrize(
    ("x", "of"),
    [
        ({"a": X, "k": np.arange(6) % 3}, lambda p, x: dist.Normal(x["a"] @ p["w"][:2] + p["w"][x["k"]], 1.0)),
        (X > 0, lambda p, x: dist.Bernoulli(logits=jnp.where(x, p["w"][:2], 0.0).sum(1))),
        (None, lambda p, x: dist.Normal(p["w"].sum() * jnp.ones(6), 1.0)),
        (X, lambda p, x: dist.Normal(x[:, 0] * jnp.repeat(p["w"], 2), 1.0)),  # an entry a row: of no other rows
    ],
    ids=["columns", "truth values", "no inputs", "as many as rows"],
)
def test_the_fitted_model_is_taken_without_its_data(tmp_path, x, of):
    of = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, of)
    posterior = Posterior(
        Point(np.array([0.3, -0.7, 1.0])), of.given(x, (Y > 0).astype(float)), verdict=Verdict("pass")
    )
    save(posterior, tmp_path / "p.credo")
    load(tmp_path / "p.credo", of)


def test_the_order_of_numpyros_fields_does_not_matter(monkeypatch, tmp_path):
    """It is that of a set of texts, another one in every process."""
    save(Posterior(kinds()["dense"], target(), verdict=Verdict("pass")), tmp_path / "p.credo")
    fields = type(dist.Normal()).gather_pytree_data_fields()
    monkeypatch.setattr(dist.Normal, "gather_pytree_data_fields", classmethod(lambda cls: fields[::-1]))
    jax.clear_caches()
    load(tmp_path / "p.credo", model())  # built in that order, as in another process
    jax.clear_caches()


DAYS = ["2020-01-01", "2020-01-02"]


@pytest.mark.parametrize(
    "levels",
    [
        np.array(DAYS, "M8[D]"),
        np.array([1, 2], "m8[D]"),
        np.array([datetime.date.fromisoformat(d) for d in DAYS], object),
    ],
    ids=["days", "spans", "dates"],
)
def test_groups_of_days_come_back(levels, tmp_path):
    model = credo.Model(
        {"b": dist.Normal(jnp.zeros(2), 1.0)}, lambda p, x: dist.Normal(p["b"][x["g"]], 1.0), groups={"g": "b"}
    )
    rows = {"g": np.tile(levels, 2)}
    posterior = credo.fit(model.given(rows, np.arange(4.0)), credo.Laplace(), progress=False)
    posterior.save(tmp_path / "days")
    back = credo.load(tmp_path / "days", model.given(rows, np.arange(4.0)))
    np.testing.assert_array_equal(back.predict({"g": levels}).mean, posterior.predict({"g": levels}).mean)


def test_estimates_in_info_come_back(tmp_path):
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Poisson(np.e ** (params["a"] * x)))
    target = model.given(np.ones(9), np.arange(9))
    posterior = credo.fit(target, credo.SMC(num_particles=64), key=0, progress=False)
    posterior.save(tmp_path / "smc")
    assert credo.load(tmp_path / "smc", target).info["path_evidence"] == posterior.info["path_evidence"]


def of_two_groups(levels):
    prior = {"b": dist.Normal(jnp.zeros(2), 1.0)}
    model = Model(prior, lambda p, x: dist.Normal(p["b"][x["g"]], 1.0), groups={"g": "b"})
    return Posterior(Point(np.array([1.0, 2.0])), model.given({"g": levels}, np.zeros(2)), verdict=Verdict("pass"))


def test_levels_of_text_of_any_length_come_back(tmp_path):
    """The file was said to be damaged."""
    levels = np.array(["u", "vw"], np.dtypes.StringDType())
    saved = of_two_groups(levels)
    saved.save(tmp_path / "p.credo")
    again = load(tmp_path / "p.credo", saved.target.model)
    assert again.predict({"g": levels[::-1]}).mean.tolist() == [2.0, 1.0]


def test_levels_of_bytes_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CredoError, match="cannot hold the group level b'u'"):
        of_two_groups(np.array([b"u", b"v"])).save(tmp_path / "p.credo")
    assert not (tmp_path / "p.credo").exists()


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


@pytest.mark.parametrize("nested", [False, True])
def test_inputs_of_a_form_that_a_file_cannot_hold(nested, tmp_path):
    """The model was said to have been fitted without inputs."""
    x = {"pair": Pair(X, Y)} if nested else Pair(X, Y)
    of = Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] * jax.tree.leaves(x)[1], 1.0))
    save(Posterior(Point(np.ones(1)), of.given(x, Y), verdict=Verdict("pass")), tmp_path / "p.credo")
    np.testing.assert_allclose(load(tmp_path / "p.credo", of.given(x, Y)).predict(x).mean, Y)
    with pytest.raises(CredoError, match=r"could not hold the form of the inputs .* load it with the target"):
        load(tmp_path / "p.credo", of).predict(x)


def test_columns_may_be_numbered(tmp_path):
    """Columns 0 and 1 were '0' and '1' in the file."""
    x = {0: X[:, 0], 1: X[:, 1]}
    of = Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] * x[1], 1.0))
    save(Posterior(Point(np.ones(1)), of.given(x, Y), verdict=Verdict("pass")), tmp_path / "p.credo")
    np.testing.assert_allclose(load(tmp_path / "p.credo", of).predict(x).mean, X[:, 1])
