"""Laplace approximations of trained networks, a page a library: ``Fitter(problem, structure)`` with the same methods.

``fit()``, ``predict(x)`` → (outputs (M, K), their covariances (M, K, K)), ``probabilities(x)`` and ``evidence_step()``.
"""

STRUCTURES = ("full", "kronecker", "diagonal", "last layer")
LIBRARIES = ("credo", "laplace-torch", "laplace-torch backpack", "laplax")


class LackingError(Exception):
    """The library has no such thing."""


def fitter(library: str, problem, structure: str):
    if library == "credo":
        from laplaces.credo_laplace import Credo

        return Credo(problem, structure)
    if library == "laplax":
        from laplaces.laplax_laplace import Laplax

        return Laplax(problem, structure)
    from laplaces.torch_laplace import LaplaceTorch

    return LaplaceTorch(problem, structure, backend="backpack" if library.endswith("backpack") else "default")
