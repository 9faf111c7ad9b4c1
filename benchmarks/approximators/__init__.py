"""Variational fits in each library: a page each, which imports its library in a process of its own.

A peer is a class ``Peer(problem, family, name)`` with ``climb(key, rate)``, a generator. Its first turn builds
the model and compiles, a later one takes steps up to the next checkpoint. Each yields (steps, [parameters, …]):
the last iterate and, later on, an average of iterates. ``read`` makes of parameters a q, which speaks of Credo's
unconstrained position: the libraries share its coordinates but for their order (``q.py``). ``credo_fits.METHODS`` are
Credo's own, which end by themselves.
"""

from importlib import import_module

FAMILIES = ("mean-field", "full-rank", "low-rank", "flow")
PEERS = {
    "mean-field": {"NumPyro AutoNormal": "numpyro_guides", "PyMC ADVI": "pymc_advi"},
    "full-rank": {"NumPyro AutoMultivariateNormal": "numpyro_guides", "PyMC FullRankADVI": "pymc_advi"},
    "low-rank": {"NumPyro AutoLowRankMultivariateNormal": "numpyro_guides"},
    "flow": {"NumPyro AutoIAFNormal": "numpyro_guides", "NumPyro AutoBNAFNormal": "numpyro_guides"},
}
RATES = (0.01, 0.05, 0.003)  # of Adam; each peer is given the best of them on each model
CHECKPOINTS = tuple(round(100 * 2 ** (k / 4)) for k in range(45))  # steps: to 200,000, a fifth more each time


def peer(family: str, name: str, problem):
    return import_module(f"approximators.{PEERS[family][name]}").Peer(problem, family, name)
