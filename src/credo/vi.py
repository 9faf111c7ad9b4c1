"""``credo.vi``: the public address of ``credo.methods.vi``."""

import sys

from credo.methods import vi
from credo.methods.vi import *  # noqa: F403  # for type checkers, which do not see the next line
from credo.methods.vi import cavi as cavi

sys.modules[__name__] = vi
