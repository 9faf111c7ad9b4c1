"""``credo.plots``: the public address of ``credo.reporting.plots``."""

import sys

from credo.reporting import plots
from credo.reporting.plots import *  # noqa: F403  # for type checkers, which do not see the next line

sys.modules[__name__] = plots
