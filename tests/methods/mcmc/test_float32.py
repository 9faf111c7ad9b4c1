"""What single precision needs: states that stay in it, differences of large densities, whole numbers that exist."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.methods.mcmc.chees import chees
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.nuts import nuts

TUNED = [credo.NUTS, credo.HMC, credo.MALA, credo.RandomWalkMetropolis, credo.ChEES, credo.ParallelTempering]


@pytest.mark.parametrize("method", TUNED, ids=lambda cls: cls.__name__)
def test_a_run_is_continued(method, tmp_path):
    """A tuned step size was of double precision, and the library's own folder refused."""
    model = credo.Model({"x": dist.Normal(np.zeros(3), 1.0)}, lambda params, x: dist.Normal(params["x"], 1.0))
    target, short = model.given(y=np.ones((1, 3))), {"precision": "float32", "progress": False, "key": 0}
    whole = credo.fit(target, method(num_draws=300), **short)
    with pytest.raises(credo.CredoError, match="The time limit of .* of warmup"):
        credo.fit(target, method(num_draws=300), checkpoint=tmp_path / "run", time_limit=1e-3, **short)
    again = credo.resume(tmp_path / "run", target, progress=False)
    np.testing.assert_array_equal(again.kind.positions, whole.kind.positions)


@pytest.mark.parametrize("kernel", ["nuts", "hmc", "chees"])
def test_a_large_constant_leaves_small_steps_accepted(kernel):
    """−10⁸ is a multiple of 8 in single precision, which a kinetic energy of 2 was lost in."""
    model = credo.Model.from_log_density(
        lambda params: -1e8 + 0.0 * jnp.sum(params["x"]), {"x": constraints.real}, {"x": (4,)}
    )
    target = model.given().cast(np.float32).flat()
    algorithm = {
        "nuts": lambda: nuts(target, step_size=0.1, max_depth=3),
        "hmc": lambda: hmc(target, step_size=0.1, num_steps=3),
        "chees": lambda: chees(target, step_size=0.1, length=0.3),
    }[kernel]()
    state = algorithm.init(jax.random.key(0), jnp.zeros(4, jnp.float32))
    _, info = jax.vmap(lambda key: algorithm.step(key, state))(jax.random.split(jax.random.key(1), 50))
    np.testing.assert_allclose(info.acceptance, 1.0, rtol=1e-5)


def test_values_beyond_the_whole_numbers_are_refused():
    low = 2**24
    model = credo.Model({"z": dist.DiscreteUniform(low, low + 10)}, lambda p, x: dist.Normal(1.0 * (p["z"] - low), 1.0))
    target, method = model.given(y=np.array([4.3])), credo.Gibbs({"z": credo.Enumerated()})
    with pytest.raises(credo.CredoError, match=r"every whole number up to 16,777,216 only: count from the lowest"):
        credo.fit(target, method, precision="float32", progress=False)
    draws = credo.fit(target, method, key=0, progress=False).draws["z"]
    assert np.mean(draws) - low == pytest.approx(4.3, abs=0.1)
