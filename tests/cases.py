"""Which cases of a test the core suite runs."""

from collections.abc import Iterable

import pytest


def first_of(cases: Iterable) -> list:
    """The first case among the core tests, the others, which show the same elsewhere, among the slow ones."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]
