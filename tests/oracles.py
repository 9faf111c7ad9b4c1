"""Independent implementations and published answers that the slow tests compare with."""

import json
import os
from pathlib import Path

import numpy as np

# posteriordb's files lie beside the checkout where they exist; the tests that need them are skipped elsewhere.
POSTERIORDB = Path(os.environ.get("CREDO_POSTERIORDB", Path(__file__).parents[2] / "shared" / "data" / "posteriordb"))


def published(name: str) -> tuple[dict, dict]:
    """(data, reference) of a posteriordb entry."""
    folder = POSTERIORDB / name
    return json.loads((folder / "data.json").read_text()), json.loads((folder / "reference.json").read_text())


def numpyro_log_density(model, arguments: tuple, params: dict) -> float:
    """The joint log density of a NumPyro program at constrained parameters, by NumPyro itself."""
    from numpyro.infer.util import log_density

    return float(log_density(model, arguments, {}, {k: np.asarray(v) for k, v in params.items()})[0])
