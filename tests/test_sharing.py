"""What several loops read is computed once, to the same numbers, and stays once when XLA has made its loops."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex

from credo.compiling import brief
from credo.gradients import value_and_gradient
from credo.precision import double
from credo.sharing import DEAR, LONG, WORTH_IT, shared, to_keep

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere XLA's own are taken")

RNG = np.random.default_rng(0)
NUM_TERMS = 24
COLUMNS, Y = RNG.normal(size=(NUM_TERMS, 50)), RNG.normal(size=50)


def regression(b):
    """One term after the other, as formulas are written."""
    return -jnp.sum((Y - sum(b[i] * COLUMNS[i] for i in range(NUM_TERMS))) ** 2)


def num_products(compiled) -> int:
    return len(re.findall(r"= \S+ multiply\(", compiled.as_text()))


def test_the_gradient_of_a_sum_of_terms_grows_with_their_number_not_its_square():
    with double():
        b = RNG.normal(size=NUM_TERMS)
        both = jax.jit(value_and_gradient(regression)).lower(b).compile()
        usual = jax.jit(jax.value_and_grad(regression)).lower(b).compile()
        assert num_products(usual) > NUM_TERMS**2
        assert num_products(both) < 8 * NUM_TERMS
        for found, expected in zip(both(b), usual(b), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_a_gradient_keeps_stays_where_the_program_round_it_keeps_more():
    """A sampler's, of 64 terms and more: its steps took 26 times as long (80 terms of 500 rows)."""

    def step(b):
        long = chain(b[0] * COLUMNS[0], LONG + 1)
        return *value_and_gradient(regression)(b), jnp.sum(long), jnp.max(long)

    with double():
        b = RNG.normal(size=NUM_TERMS)
        program = jax.make_jaxpr(step)(b)
        again = shared(program)
        assert again is not program
        compiled = jax.jit(jex.jaxpr_as_fun(again)).lower(b).compile()
        assert num_products(compiled) < 8 * NUM_TERMS + 2 * LONG
        for found, expected in zip(compiled(b), step(b), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("order", [jax.value_and_grad, jax.hessian], ids=["gradient", "curvature"])
def test_so_do_programs_that_run_a_few_times(order):
    """Within a loop or a call too."""
    found = order(regression)

    def within(b):
        none = jax.tree.map(jnp.zeros_like, jax.eval_shape(found, b))
        return lax.fori_loop(0, 2, lambda _, at: (at[0] + 1e-3, found(at[0])), (b, none))

    with double():
        b = RNG.normal(size=NUM_TERMS)
        for function in (found, within, jax.jit(found)):
            compiled, usual = brief(function).quick.lower(b).compile(), jax.jit(function).lower(b).compile()
            assert num_products(compiled) < num_products(usual)
            for ours, jaxs in zip(jax.tree.leaves(compiled(b)), jax.tree.leaves(usual(b)), strict=True):
                np.testing.assert_allclose(ours, jaxs, rtol=1e-10)


def test_many_at_once():
    with double():
        b = RNG.normal(size=(5, NUM_TERMS))
        for found, expected in zip(
            jax.vmap(value_and_gradient(regression))(b), jax.vmap(jax.value_and_grad(regression))(b), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def kept(function, *shapes):
    return len(to_keep(jax.make_jaxpr(function)(*map(jnp.ones, shapes)).jaxpr))


def chain(x, length):
    return functools.reduce(lambda total, i: total + x * i, range(1, length), x)


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: (jnp.sum(jnp.exp(x)), jnp.sum(2 * jnp.exp(x))), WORTH_IT, 0),  # each its own
        (lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(jnp.exp(x)), WORTH_IT, 1),
        (lambda x: (lambda e: (e, jnp.sum(e)))(jnp.exp(x)), WORTH_IT, 1),  # given, too
        (lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(jnp.exp(x)), WORTH_IT - 1, 0),  # too few numbers
        (lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(x + 1), WORTH_IT, 0),  # too cheap
        (lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(chain(x, DEAR)), WORTH_IT, 1),
        (lambda x: (lambda e: [jnp.sum(e * i) for i in range(DEAR + 1)])(x + 1), WORTH_IT, 1),  # cheap, and read often
        (lambda x: jnp.sum(chain(x, 5 * DEAR)), WORTH_IT, 0),  # read once
        (
            lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(jnp.cumsum(chain(x, DEAR))),
            WORTH_IT,
            0,
        ),  # in memory anyway
        (lambda x: (lambda e: (jnp.sum(e), jnp.sum(2 * e)))(jnp.exp(x)[::2] + 1), 2 * WORTH_IT, 1),
    ],
)
def test_what_is_kept(function, shape, expected):
    assert kept(function, shape) == expected


def test_what_is_kept_is_not_dear_again():
    def program(x):
        e = jnp.exp(x)
        f = e + 1
        return jnp.sum(e), jnp.sum(f), jnp.sum(2 * f)

    assert kept(program, WORTH_IT) == 1


def test_a_program_with_nothing_to_keep_is_itself():
    """As one is whose arrays are kept already."""

    def program(x):
        total = chain(x, LONG)
        return jnp.sum(total), jnp.sum(2 * total)

    plain = jax.make_jaxpr(lambda x: jnp.sum(chain(x, LONG)))(jnp.ones(WORTH_IT))
    assert shared(plain) is plain
    long = jax.make_jaxpr(program)(jnp.ones(WORTH_IT))
    once = shared(long)
    assert once is not long
    assert shared(once) is once
