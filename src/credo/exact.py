"""``credo.exact``: the public address of ``credo.methods.exact``."""

import sys

from credo.methods import exact
from credo.methods.exact import *  # noqa: F403  # for type checkers, which do not see the next line

sys.modules[__name__] = exact
