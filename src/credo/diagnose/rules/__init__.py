"""The table of verdicts: figures, bounds and sentences, a page for each kind of answer.

``docs/verdict.md`` is this table for readers; a test holds the two equal. Nothing else in the library knows a bound.
"""

from credo.diagnose.rules.approximations import APPROXIMATIONS
from credo.diagnose.rules.chains import CHAINS
from credo.diagnose.rules.information import INFORMATION
from credo.diagnose.rules.networks import NETWORKS
from credo.diagnose.rules.rule import Rule
from credo.diagnose.rules.simulations import SIMULATIONS
from credo.diagnose.rules.weights import WEIGHTS

RULES: dict[str, Rule] = CHAINS | WEIGHTS | APPROXIMATIONS | NETWORKS | SIMULATIONS | INFORMATION

__all__ = ["RULES", "Rule"]
