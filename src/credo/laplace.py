"""``credo.laplace``: the public address of ``credo.methods.laplace``."""

import sys

from credo.methods import laplace
from credo.methods.laplace import *  # noqa: F403  # for type checkers, which do not see the next line

sys.modules[__name__] = laplace
