"""The incomplete beta and gamma functions against scipy's, for small and large arguments and far into either tail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from credo.precision import double
from credo.predict.incomplete import LARGE, SMALL, beta_share, gamma_shares

RNG = np.random.default_rng(0)
NUM = 3_000
TINY = 1e-300  # what is smaller may be nothing to a compiled program


def powers(low, high):
    return 10 ** RNG.uniform(low, high, NUM)


@pytest.mark.parametrize("reach", [(-2, 0), (-1, 1), (0, 2), (1.5, 1.7), (2, 4)])
def test_gamma_shares(reach):
    a = powers(*reach)
    for x in (RNG.gamma(a), a * RNG.uniform(0, 3, NUM), np.maximum(a + np.sqrt(a) * RNG.uniform(-8, 8, NUM), 0)):
        x = np.maximum(x, TINY)
        with double():
            below, above = jax.jit(gamma_shares)(a, x)
        np.testing.assert_allclose(below, special.gammainc(a, x), atol=2e-13)
        np.testing.assert_allclose(above, special.gammaincc(a, x), atol=2e-13)


def test_tails_of_large_shapes():
    """By integration with 40 digits (mpmath); below, scipy's are off by 2e-6 to 200 %."""
    for a, z, expected in (
        (1e6, -4.6, 2.0451657660631527e-06),
        (1e8, -5.0, 2.854642139958626e-07),
        (1e9, -6.0, 9.843482805854135e-10),
        (1e9, 4.6, 2.1146105476746375e-06),
    ):
        with double():
            shares = gamma_shares(a, a + np.sqrt(a) * z)
        np.testing.assert_allclose(shares[0 if z < 0 else 1], expected, rtol=1e-10)


def test_both_gamma_tails_have_their_digits():
    """A share that is the rest of the other, where that is all but one, would have none."""
    a = np.array([0.5, 3.0, 39.0, 41.0, 200.0])
    x_of = {1e-9: special.gammaincinv(a, 1e-9), 1 - 1e-9: special.gammainccinv(a, 1e-9)}
    with double():
        np.testing.assert_allclose(gamma_shares(a, x_of[1e-9])[0], 1e-9, rtol=1e-8)
        np.testing.assert_allclose(gamma_shares(a, x_of[1 - 1e-9])[1], 1e-9, rtol=1e-8)


def test_gamma_shares_where_one_expansion_ends_and_the_next_begins():
    a = np.array([LARGE, np.nextafter(LARGE, 50), SMALL - 1, 1e-3, 0.5, 7.0])
    x = np.array([LARGE, LARGE, SMALL, SMALL, np.nextafter(SMALL, 4), 8.0])
    with double():
        for x_ in (x, np.nextafter(x, 0), np.nextafter(x, 99)):
            np.testing.assert_allclose(gamma_shares(a, x_)[0], special.gammainc(a, x_), atol=1e-14)


@pytest.mark.parametrize("reach", [(-2, 0), (-1, 1), (0, 2), (1, 3), (3, 5), (5, 7)])
def test_beta_shares(reach):
    a, b = powers(*reach), powers(*reach)
    for x in (RNG.beta(a, b), RNG.uniform(size=NUM)):
        x = np.maximum(x, TINY)
        with double():
            found = jax.jit(beta_share)(a, b, x, 1 - x)
        np.testing.assert_allclose(found, special.betainc(a, b, x), atol=2e-13)


def test_the_rest_of_x_has_its_own_digits():
    """Of 1 − 1e-20 floats know nothing."""
    with double():
        np.testing.assert_allclose(beta_share(2.0, 0.5, 1.0, 1e-20), 1 - special.betainc(0.5, 2.0, 1e-20), atol=1e-15)
        np.testing.assert_allclose(1 - beta_share(0.5, 0.5, 1.0, 1e-20), special.betainc(0.5, 0.5, 1e-20), atol=1e-15)


def test_ends_and_what_is_no_number():
    with double():
        assert beta_share(jnp.array([0.5, 2.0, 1e5]), 3.0, 0.0, 1.0).tolist() == [0, 0, 0]
        assert beta_share(jnp.array([0.5, 2.0, 1e5]), 3.0, 1.0, 0.0).tolist() == [1, 1, 1]
        for x, expected in ((0.0, 0.0), (np.inf, 1.0)):
            below, above = gamma_shares(jnp.array([0.5, 7.0, 1e3, 1e8]), x)
            assert below.tolist() == [expected] * 4
            assert above.tolist() == [1 - expected] * 4
        np.testing.assert_array_equal(
            np.isnan(gamma_shares(jnp.array([1.0, np.nan, 1e3]), 2.0)[0]), [False, True, False]
        )
        np.testing.assert_array_equal(np.isnan(beta_share(jnp.array([1.0, np.nan]), 2.0, 0.3, 0.7)), [False, True])


def test_single_precision_and_no_numbers_at_all():
    a, x = np.array([0.3, 5.0, 60.0], np.float32), np.array([0.4, 4.0, 70.0], np.float32)
    with double(False):
        below, _ = gamma_shares(a, x)
        share = beta_share(a, 2.0, 0.4, 0.6)
        assert below.dtype == share.dtype == jnp.float32
        np.testing.assert_allclose(below, special.gammainc(a.astype(float), x.astype(float)), rtol=3e-5)
        np.testing.assert_allclose(share, special.betainc(a.astype(float), 2.0, 0.4), rtol=3e-4, atol=1e-7)
        assert gamma_shares(jnp.zeros(0), jnp.zeros(0))[0].shape == (0,)
        assert beta_share(jnp.zeros(0), 1.0, jnp.zeros(0), jnp.zeros(0)).shape == (0,)
