"""Discrete latent sites summed out exactly, by funsor (Obermeyer et al., 2019; the extra ``enumeration``)."""

import importlib.util

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from credo.adapters.program import LOCK, Program, Sites
from credo.model.distributions import unwrapped
from credo.model.mended import mended
from credo.status import CredoError


def check_site(name: str, distribution: Distribution) -> None:
    """CredoError unless the discrete latent site ``name`` can be summed out here."""
    kind = type(unwrapped(distribution)).__name__
    if not distribution.has_enumerate_support:
        raise CredoError(
            f"Site {name!r} is a discrete latent variable with infinitely many values ({kind}), which cannot be summed "
            "out: truncate it to finitely many values (Categorical), or replace it by a continuous one."
        )
    if importlib.util.find_spec("funsor") is None:
        raise CredoError(
            f"Site {name!r} is a discrete latent variable ({kind}); summing it out needs the extra `enumeration`: "
            "pip install 'credo[enumeration]'."
        )


def check_plates(sites: Sites) -> int:
    """The depth of the plates. Batch dimensions outside plates would be summed wrongly: CredoError names them."""
    depth = 0
    for name, site in sites.items():
        if site["type"] != "sample":
            continue
        dims = {frame.dim for frame in site["cond_indep_stack"]}
        depth = max([depth, *(-dim for dim in dims)])
        shape = np.broadcast_shapes(
            site["fn"].batch_shape, np.shape(site["value"])[: np.ndim(site["value"]) - site["fn"].event_dim]
        )
        loose = [i - len(shape) for i, length in enumerate(shape) if length > 1 and i - len(shape) not in dims]
        if site.get("_control_flow_done") and -len(shape) in loose:  # the time axis of a scan
            loose.remove(-len(shape))
        if loose:
            raise CredoError(
                f"Site {name!r} has batch shape {shape} with dimension {loose[0]} in no plate: summing out discrete "
                "sites needs `with numpyro.plate(...)` around it, or .to_event() where it is one variable."
            )
    return depth


def stand_in(distribution: Distribution):
    """A value for a discrete site where the model is run without summing it out."""
    first = distribution.enumerate_support(expand=False)[0]
    return jnp.broadcast_to(first, distribution.shape())


def log_density(program: Program, params: dict, depth: int):
    """log of the sum over all discrete latent sites of the joint density at the constrained ``params``."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as summed

    def mended_program():
        with Mended():
            return program.call()

    model = enum(config_enumerate(mended_program), first_available_dim=-depth - 1)
    with LOCK:
        return summed(model, (), {}, params)[0]


class Mended(Messenger):
    """Sites have the log densities of model/mended.py: those at a probability of 0 are met where nothing lives."""

    def process_message(self, msg):
        if msg["type"] == "sample":
            msg["fn"] = mended(msg["fn"])
