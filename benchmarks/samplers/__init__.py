"""NUTS in each library at its defaults: a class each, which imports its library in a process of its own.

``Sampler(problem, num_draws, num_warmup, num_chains)`` imports; ``num_warmup`` None is the library's own default, which
``num_warmup`` then holds after a fit. ``fit(key)`` answers draws (chain, draw, *shape) by name as NumPy arrays. The
first call builds the model and compiles; a later one reuses what the library lets a user keep. ``parts`` holds the
seconds that the library shows apart, ``gradients`` what the last fit spent (``steps.py``). ``count_warmup(key)``: where
the library shows the steps of warm-up only in a fit of another kind, that fit, which nobody times.
"""

from samplers.compiled import Nutpie, NutpieJAX, PyMC, Stan
from samplers.credo_nuts import Credo, CredoVectorized
from samplers.jax_peers import BlackJAX, BlackJAXSharded, NumPyro, NumPyroVectorized

SAMPLERS = {
    "credo": Credo,
    "credo-vectorized": CredoVectorized,
    "numpyro": NumPyro,
    "numpyro-vectorized": NumPyroVectorized,
    "blackjax": BlackJAX,
    "blackjax-sharded": BlackJAXSharded,
    "nutpie": Nutpie,
    "nutpie-jax": NutpieJAX,
    "pymc": PyMC,
    "stan": Stan,
}
VECTORIZED = ("credo-vectorized", "numpyro-vectorized", "blackjax")  # all chains in one program
