"""Credo: a posterior by the approximation you name, and how far it can be trusted.

The road: a ``Model`` and data give a ``Target``; a method fits it; the ``Posterior`` carries its own verdict, predicts,
and stands beside others on one table.

>>> import numpy as np, numpyro.distributions as dist, credo
>>> model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]))
>>> posterior = credo.fit(model.given(y=np.array([1, 1, 0, 1])), credo.Exact())
>>> float(posterior.mean()["p"])
0.6666666666666666
"""

import lazy_loader

# Names and their homes stand in __init__.pyi. Each is loaded where it is first used: a command that draws needs no
# optimiser, and a script waits for JAX and NumPyro alone.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
