"""The average over the last updates divides by as many as it holds, in single precision too."""

import jax
import numpy as np

from credo.methods.vi.stochastic.ascent import FALL, first_averaged


def test_the_device_and_the_host_count_alike():
    num_updates = np.arange(10, 20_001, 10, dtype=np.int32)
    first = np.asarray(jax.jit(first_averaged)(num_updates))
    np.testing.assert_array_equal(first, [first_averaged(int(n)) for n in num_updates])
    assert first_averaged(12_700) == 7_620
    assert np.all((first >= FALL * num_updates - 1e-9) & (first < FALL * num_updates + 1))
