"""``credo.sgmcmc``: the public address of ``credo.methods.sgmcmc``."""

import sys

from credo.methods import sgmcmc
from credo.methods.sgmcmc import *  # noqa: F403  # for type checkers, which do not see the next line

sys.modules[__name__] = sgmcmc
