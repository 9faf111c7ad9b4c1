"""``credo.mcmc``: the public address of ``credo.methods.mcmc.kernels``."""

import sys

from credo.methods.mcmc import kernels
from credo.methods.mcmc.kernels import *  # noqa: F403  # for type checkers, which do not see the next line

sys.modules[__name__] = kernels
