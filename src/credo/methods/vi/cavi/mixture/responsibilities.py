"""The responsibilities of components for rows, and the statistics they leave: one pass through the data.

    log ρ_nk = c_k · φ(x_n);  r_nk = ρ_nk / Σ_j ρ_nj;  T_k = Σ_n r_nk φ(x_n);  log p̃ = Σ_n log Σ_k ρ_nk

Both products, C Φ and r Φᵀ, are matrix products. Rows are taken a few thousand at a time, so that what lies between
the two stays in the processor's cache; as many batches run at once as there are cores, each on one.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float

from credo.cores import num_cores
from credo.linalg.blas import ONE_THREAD
from credo.methods.vi.cavi.mixture.statistics import Features

ROWS_AT_ONCE = 2_048  # 66 features of them are a megabyte: the second-level cache of a core
KEPT_BYTES = 2**30  # features are kept from pass to pass up to this size, and made anew in each beyond it


class Rows:
    """The rows of a fit, and passes through them; a context, in which the linear algebra leaves threads to it."""

    def __init__(self, x: Float[np.ndarray, "row dim"], features: Features):
        self.x, self.features = x, features
        self.num_threads = min(num_cores(), -(-len(x) // ROWS_AT_ONCE))
        self._parts = [slice(i, i + ROWS_AT_ONCE) for i in range(0, len(x), ROWS_AT_ONCE)]
        is_kept = len(x) * features.size * 8 <= KEPT_BYTES
        self._kept = [features.of(x[part]) for part in self._parts] if is_kept else None
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __enter__(self) -> "Rows":
        if self.num_threads > 1:
            ONE_THREAD.__enter__()
            self._pool = ThreadPoolExecutor(self.num_threads)
        return self

    def __exit__(self, *error) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            ONE_THREAD.__exit__(*error)
        self._pool = None

    def sweep(self, coefficients: Float[np.ndarray, "K P"]) -> tuple[Float[np.ndarray, "K P"], float]:
        """(T, Σ_n log Σ_k ρ_nk) at ``coefficients``."""

        def of(i: int):
            lines = self._lines(i)
            r, normalisers = respond(coefficients, lines)
            return r @ lines.T, float(np.sum(normalisers))

        statistics, total = zip(*self._each(of), strict=True)
        return _summed(statistics), float(np.sum(total))

    def log_normalisers(self, coefficients: Float[np.ndarray, "sets_K P"], num_components: int):
        """Σ_n log Σ_k ρ_nk for each of several sets of ``num_components`` lines of ``coefficients``: (sets,)."""

        def of(i: int):
            log_rho = (coefficients @ self._lines(i)).reshape(-1, num_components, self._size(i))
            largest = log_rho.max(axis=1)
            log_rho -= largest[:, None]
            return np.sum(largest + np.log(np.sum(np.exp(log_rho, out=log_rho), axis=1)), axis=1)

        return _summed(self._each(of))

    @property
    def rows_at_once(self) -> int:
        """The most rows that are taken at a time."""
        return ROWS_AT_ONCE

    def _size(self, i: int) -> int:
        return len(self.x[self._parts[i]])

    def collect(self, r: Float[np.ndarray, "row K"]) -> Float[np.ndarray, "K P"]:
        """T of given responsibilities."""
        return _summed(self._each(lambda i: r[self._parts[i]].T @ self._lines(i).T))

    def _each(self, of: Callable) -> Iterable:
        return list(self._pool.map(of, range(len(self._parts))) if self._pool else map(of, range(len(self._parts))))

    def _lines(self, i: int) -> Float[np.ndarray, "P row"]:
        return self.features.of(self.x[self._parts[i]]) if self._kept is None else self._kept[i]


def respond(coefficients, lines) -> tuple[Float[np.ndarray, "K row"], Float[np.ndarray, " row"]]:
    """r and log Σ_k ρ of the rows whose features are ``lines`` (P, row)."""
    r = coefficients @ lines
    largest = r.max(axis=0)
    r -= largest
    np.exp(r, out=r)
    total = r.sum(axis=0)
    r /= total
    return r, largest + np.log(total)


def _summed(parts: Iterable[np.ndarray]) -> np.ndarray:
    """In the order of the rows, whatever thread was first: the same answer every time."""
    total = np.zeros(())
    for part in parts:
        total = total + part
    return total
