"""An index past the rows of a parameter ends in a sentence: JAX would read the last row in its place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.adapters import from_numpyro

LEVELS = np.array([1, 5, 2, 3, 4])  # of five rows: they count from one
Y = LEVELS.astype(float)
PRIOR = {"a": dist.Normal(0.0, 5.0).expand([5]), "scale": dist.HalfNormal(1.0)}


def numpyro_program(g, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0).expand([5]))
    numpyro.sample("y", dist.Normal(a[g], 0.1), obs=y)


def by_log_density(g):
    model = credo.Model.from_log_density(
        lambda params, data: -jnp.sum((data["y"] - params["a"][data["g"]]) ** 2), {"a": constraints.real}, {"a": (5,)}
    )
    return model.given({"y": Y, "g": g})


def of_rows(index):
    return lambda g: credo.Model(PRIOR, lambda p, x: dist.Normal(index(p, x), 0.1)).given({"g": g}, Y)


def by_steps(p, x, *, reverse=False):
    return jax.lax.scan(lambda last, i: (0.5 * last + p["a"][i], last + p["a"][i]), 0.0, x["g"], reverse=reverse)[1]


def by_counting(p, x):
    return jax.lax.fori_loop(0, 5, lambda i, found: found.at[i].set(p["a"][x["g"][i]]), jnp.zeros(5))


def by_steps_of_steps(p, x):
    """Three numbers of a row, one after the other; the last of them is not the row's own."""

    def row(last, i):
        return jax.lax.scan(lambda last, j: (last + p["a"][i - j], None), last, jnp.arange(3) // 2)[0], last

    return jax.lax.scan(row, 0.0, x["g"])[1]


WAYS = {
    "a parameter": (of_rows(lambda p, x: p["a"][x["g"]]), r"x\['g'\] indexes 'a' at 5 \(in row 1\)"),
    "a product": (of_rows(lambda p, x: (p["scale"] * p["a"])[x["g"]]), r"x\['g'\] indexes 'a' at 5"),
    "numbers cast": (of_rows(lambda p, x: p["a"][(x["g"] / 1.0).astype(int)]), r"x\['g'\] indexes 'a' at 5"),
    "one of two that are stacked": (
        of_rows(lambda p, x: p["a"][jnp.stack([0 * x["g"], x["g"]])[1]]),
        r"x\['g'\] indexes 'a' at 5",
    ),
    "a row at a time": (of_rows(lambda p, x: jax.vmap(lambda i: p["a"][i])(x["g"])), r"x\['g'\] indexes 'a' at 5"),
    "a jitted one": (of_rows(lambda p, x: jax.jit(lambda a, i: a[i])(p["a"], x["g"])), r"x\['g'\] indexes 'a' at 5"),
    "a scan": (of_rows(by_steps), r"x\['g'\] indexes 'a' at 5 \(in row 1\)"),
    "a scan backwards": (of_rows(functools.partial(by_steps, reverse=True)), r"indexes 'a' at 5 \(in row 1\)"),
    "a loop that counts": (of_rows(by_counting), r"x\['g'\] indexes 'a' at 5 \(in row 1\)"),
    "a log density": (by_log_density, r"x\['g'\] indexes 'a' at 5 \(in row 1\)"),
    "a NumPyro program": (lambda g: from_numpyro(numpyro_program).given(g, Y), "The data index 'a' at 5"),
}


def test_a_table_made_of_parameters_is_told_by_those_with_rows():
    """The scalar that begins a path, and the scale of its steps, were said to be indexed too."""
    prior = {"start": dist.Normal(0.0, 1.0), "scale": dist.HalfNormal(1.0), "z": dist.Normal(0.0, 1.0).expand([4])}

    def path(p, x):
        walk = jnp.concatenate([p["start"][None], p["start"] + p["scale"] * jnp.cumsum(p["z"])])
        return dist.Normal(walk[x["t"]], 1.0)

    with pytest.raises(credo.CredoError, match=r"x\['t'\] indexes a table of 5 entries made of 'z' at 5"):
        credo.Model(prior, path).given({"t": LEVELS}, Y)


@pytest.mark.parametrize("name", WAYS)
def test_levels_that_count_from_one_are_told(name):
    build, said = WAYS[name]
    with pytest.raises(credo.CredoError, match=said + r".*5 entries, 0 to 4.*subtract 1, since they count from 0"):
        build(LEVELS)
    build(LEVELS - 1)


def test_floats_do_not_index():
    with pytest.raises(credo.CredoError, match=r"indexes by floats, .* by x.astype\(int\)"):
        of_rows(lambda p, x: p["a"][x["g"]])(LEVELS - 1.0)


def test_a_discrete_parameter_is_indexed_within_its_rows_too():
    prior = {"z": dist.Bernoulli(0.3).expand([5]), "scale": dist.HalfNormal(1.0)}
    model = credo.Model(prior, lambda p, x: dist.Normal(p["z"][x], p["scale"]))
    with pytest.raises(credo.CredoError, match="x indexes 'z' at 5"):
        model.given(LEVELS, Y)
    model.given(LEVELS - 1, Y)


@pytest.mark.parametrize(
    "of",
    [
        lambda value, x: jnp.where(value > 0, 0.9, 0.1),
        lambda value, x: jnp.nan_to_num(value),
        lambda value, x: value**2 + jnp.sqrt(x["g"] - 2.0),
    ],
    ids=["compared", "NaN made a number", "NaN elsewhere"],
)
def test_what_a_wrong_row_changes_counts_however_it_comes_through(of):
    with pytest.raises(credo.CredoError, match=r"x\['g'\] indexes 'a' at 5"):
        of_rows(lambda p, x: of(p["a"][x["g"]], x))(LEVELS)


def test_a_masked_index_counts_for_nothing_beside_a_row_that_is_no_number():
    of_rows(lambda p, x: jnp.where(x["g"] < 5, p["a"][x["g"]], 0.0) + jnp.sqrt(x["g"] - 2.0))(LEVELS)


def test_the_axis_that_is_too_short_is_told():
    def given(h):
        model = credo.Model(
            {"table": dist.Normal(0.0, 1.0).expand([5, 3])}, lambda p, x: dist.Normal(p["table"][x["g"], x["h"]], 0.1)
        )
        return model.given({"g": LEVELS - 1, "h": np.array(h)}, Y)

    with pytest.raises(credo.CredoError, match=r"'table' at 3 \(in row 1\), and there are 3 entries.*give 0 to 2"):
        given([0, 3, 1, 1, 2])
    given([0, 2, 1, 1, 2])


def test_from_the_end_python_counts():
    of_rows(lambda p, x: p["a"][x["g"] - 6])(LEVELS)
    with pytest.raises(credo.CredoError, match=r"indexes 'a' at -6 \(in row 0\).*would read the first in silence"):
        of_rows(lambda p, x: p["a"][x["g"] - 7])(LEVELS)


NEGATIVE = {
    "a parameter": lambda p, x: p["a"][x["g"]],
    "a row at a time": lambda p, x: jax.vmap(lambda i: p["a"][i])(x["g"]),
    "a scan": by_steps,
    "a loop that counts": by_counting,
    "jnp.take": lambda p, x: jnp.take(p["a"], x["g"]),
    "a jitted one": lambda p, x: jax.jit(lambda a, i: a[i])(p["a"], x["g"]),
    "beside a constant": lambda p, x: (p["a"][:, None] * jnp.ones(3))[x["g"], -1],
    "numbers cast": lambda p, x: p["a"][(x["g"] / 1.0).astype(int)],
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_negative_numbers_in_the_data_are_told(name):
    """JAX reads them from the end, so that a mark of what is missing, -1, was the last level."""
    given = of_rows(NEGATIVE[name])
    with pytest.raises(credo.CredoError, match=r"x\['g'\] indexes 'a' at -2 \(in row 3\), which JAX would count from"):
        given(np.array([0, 1, 2, -2, -1]))
    given(np.array([0, 1, 2, 3, 4]))


def test_a_scan_in_a_scan_is_looked_through():
    of_rows(by_steps_of_steps)(np.array([1, 2, 3, 4, 4]))
    with pytest.raises(credo.CredoError, match=r"x\['g'\] indexes 'a' at 5 \(in row 2\)"):
        of_rows(by_steps_of_steps)(np.array([1, 2, 5, 3, 4]))
    with pytest.raises(credo.CredoError, match=r"x\['g'\] indexes 'a' at -1 \(in row 2\), which JAX would count"):
        of_rows(by_steps_of_steps)(np.array([1, 2, -1, 3, 4]))


def test_a_scan_backwards_counts_from_the_last_row():
    def last(p, x):
        return jax.lax.scan(lambda i, g: (i + 1, p["a"][g + i]), 0, x["g"], reverse=True)[1]

    of_rows(last)(np.arange(5))  # 4 + 0, 3 + 1, …
    with pytest.raises(credo.CredoError, match=r"x\['g'\] indexes 'a' at 8 \(in row 0\)"):
        of_rows(last)(np.arange(5)[::-1])


def test_what_is_masked_within_a_scan_is_let_pass():
    def masked(p, x):
        def step(last, i):
            return last, jnp.where((i >= 0) & (i < 5), p["a"][i], 0.0)

        return jax.lax.scan(step, 0.0, x["g"])[1]

    of_rows(masked)(LEVELS)
    of_rows(masked)(np.array([0, 1, 2, -2, -1]))


def test_negative_numbers_that_are_masked_or_index_nothing_are_let_pass():
    g = np.array([0, 1, 2, -2, -1])
    of_rows(lambda p, x: jnp.where(x["g"] >= 0, p["a"][x["g"]], 0.0))(g)
    of_rows(lambda p, x: p["a"][jnp.maximum(x["g"], 0)] * x["g"])(g)
    of_rows(lambda p, x: p["a"][-1] * x["g"] + p["a"][jnp.array([-1, -2, 0, 0, 0])])(g)
    of_rows(lambda p, x: p["a"][jnp.abs(x["g"])])(g)


def test_negative_tokens_of_a_network_are_told_in_predictions_too():
    params = {"table": np.zeros((7, 3)), "out": np.zeros((3, 2))}
    network = credo.nn.BayesianNetwork(outputs_of, params, head=credo.nn.Categorical())
    tokens, y = np.arange(40).reshape(10, 4) % 7, np.arange(10) % 2
    padded = np.where(tokens == 3, -1, tokens)
    with pytest.raises(credo.CredoError, match=r"x indexes 'weights.table' at -1 \(in row 0\)"):
        network.given(padded, y)
    posterior = credo.fit(network.given(tokens, y), credo.MAP(), progress=False)
    with pytest.raises(credo.CredoError, match=r"x indexes 'weights.table' at -1 \(in row 0\)"):
        posterior.predict(padded)


@pytest.mark.parametrize(
    "index",
    [
        lambda p, x: p["a"][x["g"] - 1],
        lambda p, x: p["a"][jnp.minimum(x["g"], 4)],
        lambda p, x: jnp.take(p["a"], x["g"], mode="wrap"),
        lambda p, x: jnp.take(p["a"], x["g"], mode="clip"),
        lambda p, x: p["a"].at[x["g"]].get(mode="clip"),
        lambda p, x: jax.vmap(lambda i: jnp.take(p["a"], i, mode="clip"))(x["g"]),
        lambda p, x: p["a"][1] * x["g"],
        lambda p, x: p["a"][jnp.argsort(p["a"])],
        lambda p, x: jnp.where(x["g"] < 5, p["a"][x["g"]], 0.0),
        lambda p, x: p["a"][x["g"][None, :] - 1][0],
    ],
    ids=[
        "shifted",
        "clamped",
        "wrapped",
        "clipped",
        "clipped at",
        "clipped one by one",
        "no index",
        "by a parameter",
        "masked",
        "with an axis more",
    ],
)
def test_what_stays_within_is_let_pass(index):
    of_rows(index)(LEVELS)


def test_every_block_of_a_loader_is_looked_at():
    g = np.tile(LEVELS - 1, 2_000)
    g[-1] = 5
    batches = [(g[first : first + 100], np.zeros(100)) for first in range(0, len(g), 100)]
    model = credo.Model(PRIOR, lambda p, x: dist.Normal(p["a"][x], 0.1))
    with pytest.raises(credo.CredoError, match="x indexes 'a' at 5"):
        model.given(credo.Loader(batches, in_memory=False))


def outputs_of(params, x):
    return jnp.tanh(params["table"][x].sum(1)) @ params["out"]


def test_tokens_past_the_table_of_a_network_are_told():
    """Of weights that are zero no row of the table would matter."""
    params = {"table": np.zeros((7, 3)), "out": np.zeros((3, 2))}
    network = credo.nn.BayesianNetwork(outputs_of, params, head=credo.nn.Categorical())
    tokens, y = np.arange(40).reshape(10, 4) % 7, np.arange(10) % 2
    wrong = np.where(tokens == 3, 9, tokens)
    with pytest.raises(credo.CredoError, match=r"'weights.table' at 9 .*there are 7 entries"):
        network.given(wrong, y)
    posterior = credo.fit(network.given(tokens, y), credo.MAP(), progress=False)
    with pytest.raises(credo.CredoError, match=r"'weights.table' at 9 .*there are 7 entries"):
        posterior.predict(wrong)


@pytest.mark.parametrize(("x", "said"), [([1, 1, 2, 2, 3, 3], "at 3, and there are 3"), ([-1, 0, 0, 1, 1, 2], "at -1")])
def test_entries_that_are_read_one_by_one(x, said):
    """A loop of Python over the rows reads slices, which JAX keeps within the array without a word."""
    prior = {"theta": dist.Normal(0.0, 10.0).expand([3])}
    y = np.array([0.0, 0, 5, 5, 10, 10])

    def likelihood(params, x):
        return dist.Normal(jnp.stack([params["theta"][x[i]] for i in range(6)]), 1.0)

    def masked(params, x):
        read = [jnp.where((x[i] > 2) | (x[i] < 0), 0.0, params["theta"][x[i]]) for i in range(6)]
        return dist.Normal(jnp.stack(read), 1.0)

    with pytest.raises(credo.CredoError, match=said):
        credo.fit(credo.Model(prior, likelihood).given(np.array(x), y), credo.MAP())
    credo.fit(credo.Model(prior, masked).given(np.array(x), y), credo.MAP(), progress=False)
    found = credo.fit(
        credo.Model(prior, likelihood).given(np.array([0, 0, 1, 1, 2, 2]), y), credo.MAP(), progress=False
    )
    np.testing.assert_allclose(found.mean()["theta"], [0.0, 10 / 2.01, 20 / 2.01], atol=1e-6)
