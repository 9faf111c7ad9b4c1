"""Training that is interrupted goes on from its checkpoint, bit for bit, whatever the method."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo import course
from credo.nn import BayesianNetwork, Gaussian, Isotropic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=48)


WEIGHTS = {"a": np.ones((2, 3)), "c": np.array([0.5, -0.5, 0.1])}


def apply(params, x):
    return jnp.tanh(x @ params["a"]) @ params["c"]


def target(noise: float = 0.2):
    return BayesianNetwork(apply, WEIGHTS, head=Gaussian(noise), prior=Isotropic(1.0)).given(X, Y)


def layers():
    return credo.nn.VBNetwork([credo.nn.VBLinear(2, 1)], head=Gaussian(0.2)).given(X, Y)


METHODS = {
    "ensemble": (target, credo.DeepEnsemble(3, batch_size=16, num_steps=60)),
    "snapshots": (target, credo.StochasticWeightSnapshots(cycles=3, batch_size=16, num_steps=20)),
    "multiswag": (target, credo.MultiSWAG(2, swag=credo.SWAG(batch_size=16, num_steps=40, num_snapshots=6, rank=3))),
    "mixture": (target, credo.MixtureOfLaplaces(2, batch_size=16, num_steps=60)),
    "svgd": (target, credo.SVGD(num_particles=6, num_steps=60)),
    "dropout": (target, credo.MCDropout(batch_size=16, num_steps=60)),
    "vbll": (target, credo.VBLL(batch_size=16, num_steps=60)),
    "layers": (layers, credo.VariationalLayers(batch_size=16, num_steps=60)),
    "map": (target, credo.MAP(batch_size=16, num_steps=60)),
    "laplace": (target, credo.Laplace(num_steps=60)),
}


# what trains several members, and what trains one, is the same in others
ALL = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("multiswag", "mixture", "layers") else ())
        for name in METHODS
    ],
)


@ALL
def test_an_interrupted_training_goes_on(name, tmp_path, monkeypatch):
    make, method = METHODS[name]
    whole = credo.fit(make(), method, key=3, progress=False)
    parts = []

    class Impatient(course.Stopping):
        """Ctrl-C is heard while a part runs: the sixth, and in what follows the training the tenth."""

        def check(self):
            parts.append(None)
            self.heard = 2 if len(parts) == 6 else self.heard
            super().check()

    monkeypatch.setattr(course, "Stopping", Impatient)
    monkeypatch.setattr(course, "SAVED", 0.0)
    with pytest.raises(KeyboardInterrupt) as stopped:
        credo.fit(make(), method, key=3, checkpoint=tmp_path / "run", progress=False)
    assert any("credo.resume continues it" in note for note in stopped.value.__notes__)
    with pytest.raises(credo.CredoError, match="holds a run already"):
        credo.fit(make(), method, key=3, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", make(), progress=False)
    assert len(parts) > 6
    jax.tree.map(np.testing.assert_array_equal, whole.sample(1, 3), resumed.sample(1, 3))


@ALL
def test_a_training_that_a_time_limit_cut_goes_on_as_if_it_had_not(name, tmp_path):
    """What follows a part that was cut begins where that left it, and is no part of the run."""
    make, method = METHODS[name]
    whole = credo.fit(make(), method, key=3, progress=False)
    with contextlib.suppress(credo.CredoError):  # of those whose answer needs the whole training
        cut = credo.fit(make(), method, key=3, checkpoint=tmp_path / "run", time_limit=1e-6, progress=False)
        assert not cut.info["is_complete"]
    resumed = credo.resume(tmp_path / "run", make(), progress=False)
    jax.tree.map(np.testing.assert_array_equal, whole.sample(1, 3), resumed.sample(1, 3))


def test_a_finished_training_is_not_done_again(tmp_path, monkeypatch):
    method = credo.DeepEnsemble(2, batch_size=16, num_steps=30)
    first = credo.fit(target(), method, checkpoint=tmp_path / "run", progress=False)

    def nothing(*_, **__):
        raise AssertionError("an update of a training that was done")

    monkeypatch.setattr("credo.methods.optimise.members._advance", nothing)
    again = credo.resume(tmp_path / "run", target(), progress=False)
    np.testing.assert_array_equal(first.sample(1, 2)["weights"]["a"], again.sample(1, 2)["weights"]["a"])
    with monkeypatch.context() as patch:
        patch.setattr("credo.journal.__version__", "0.0")
        with pytest.warns(UserWarning, match="no longer bit for bit"):
            credo.resume(tmp_path / "run", target(), progress=False)
    with pytest.raises(credo.CredoError, match="The model has changed"):
        credo.resume(tmp_path / "run", target(0.5), progress=False)


def test_a_time_limit_leaves_what_resume_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "PART", 0.0)  # parts of one update
    options = {"checkpoint": tmp_path / "swag", "time_limit": 1.0, "progress": False}
    with pytest.raises(credo.CredoError, match=r"raise time_limit \(credo.resume continues it\)"):
        credo.fit(target(), credo.SWAG(batch_size=16, num_steps=100_000), **options)
    assert (tmp_path / "swag" / "training.safetensors").exists()


def test_members_that_a_time_limit_cut_go_on(tmp_path, monkeypatch):
    method = credo.DeepEnsemble(2, batch_size=16, num_steps=400)
    whole = credo.fit(target(), method, key=3, progress=False)
    monkeypatch.setattr(course, "PART", 0.0)  # parts of one update
    options = {"checkpoint": tmp_path / "run", "time_limit": 1e-9, "progress": False}
    cut = credo.fit(target(), method, key=3, **options)  # at the first look at the clock
    assert not cut.info["is_complete"]
    assert "credo.resume continues it" in cut.verdict.sentences[0]
    resumed = credo.resume(tmp_path / "run", target(), progress=False)
    assert resumed.info["is_complete"]
    jax.tree.map(np.testing.assert_array_equal, whole.sample(1, 3), resumed.sample(1, 3))


@pytest.mark.parametrize("part", [1, 3])
def test_a_search_before_a_run_goes_on_too(part, tmp_path, monkeypatch):
    """Stochastic-gradient samplers of many weights begin at a mode that minibatches find."""
    monkeypatch.setattr("credo.methods.sgmcmc.tune.MAX_DENSE", 0)
    monkeypatch.setattr(course, "SAVED", 0.0)
    method = credo.SGLD(chains=2, num_warmup=5, num_draws=10, batch_size=16)
    whole = credo.fit(target(), method, key=3, progress=False)
    with monkeypatch.context() as context:
        parts = []

        def check(self):
            parts.append(None)
            if len(parts) == part:
                raise KeyboardInterrupt

        context.setattr(course.Stopping, "check", check)
        with pytest.raises(KeyboardInterrupt):
            credo.fit(target(), method, key=3, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", target(), progress=False)
    jax.tree.map(np.testing.assert_array_equal, whole.sample(1, 3), resumed.sample(1, 3))


@pytest.mark.parametrize("method", [credo.NaturalGradient, credo.ADVI])
def test_a_search_while_a_run_compiles_goes_on_too(method, tmp_path, monkeypatch):
    """The run has written its layout and the like into the folder by then, of which the search knows nothing."""
    method = method(batch_size=16, max_steps=60)
    whole = credo.fit(target(), method, key=3, progress=False)
    save = course.Course.save

    def save_and_stop(self):
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(course.Course, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            credo.fit(target(), method, key=3, checkpoint=tmp_path / "run", progress=False)
    resumed = credo.resume(tmp_path / "run", target(), progress=False)
    jax.tree.map(np.testing.assert_array_equal, whole.sample(1, 3), resumed.sample(1, 3))
