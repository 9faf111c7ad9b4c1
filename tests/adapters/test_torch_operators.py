"""Operators of ATen beyond those of usual layers, each against torch: outputs and gradients in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.adapters import from_torch
from credo.precision import double

torch = pytest.importorskip("torch", reason="it comes with the `oracles` extra")
nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.oracle

GENERATOR = torch.Generator().manual_seed(0)
PLACES = {n: 1.5 * (2 * torch.rand(1, *(5,) * n, n, generator=GENERATOR, dtype=torch.double) - 1) for n in (2, 3)}
TURN = torch.tensor([[[0.8, 0.1, 0.0], [-0.1, 0.9, 0.1]]], dtype=torch.double)
BINS = torch.tensor([0, 1, 2, 0, 1, 2])


class Scaled(nn.Module):
    """``function`` of x times a weight an entry."""

    def __init__(self, function, shape):
        super().__init__()
        self.function, self.weight = (
            function,
            nn.Parameter(1.0 + 0.1 * torch.arange(float(np.prod(shape))).reshape(shape)),
        )

    def forward(self, x):
        return self.function(x * self.weight)


def positive(x):
    return x @ x.mT + torch.eye(4, dtype=x.dtype)


def factor(x):
    return torch.linalg.cholesky(positive(x))


def at(x, **kwargs):
    places = PLACES[x.ndim - 2]
    return F.grid_sample(x, places.expand(x.shape[0], *places.shape[1:]), **kwargs)


def turned(x):
    return at_grid(x, F.affine_grid(TURN.expand(x.shape[0], 2, 3), list(x.shape), align_corners=False))


def at_grid(x, grid):
    return F.grid_sample(x, grid, align_corners=False)


def learned(x):
    return at_grid(torch.ones_like(x[:, :1]) * torch.arange(6.0) ** 2, torch.tanh(x.movedim(1, 3)))


def into_bins(x, reduce, include_self):
    start = torch.full((x.shape[0], 4), 0.3, dtype=x.dtype)
    return start.scatter_reduce(1, BINS.expand(x.shape[0], 6), x, reduce, include_self=include_self)


def rebuilt(x):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return u @ torch.diag_embed(s**2) @ v


def signal(x):
    return torch.view_as_real(torch.stft(x, 4, return_complex=True, window=torch.ones(4, dtype=x.dtype))).flatten(1)


MATRIX, IMAGE = (4, 4), (2, 6, 6)
OPERATORS = {
    # transforms
    "fourier": (lambda x: torch.fft.rfft(x).abs(), (8,)),
    "fourier back": (lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=7, norm="forward"), (7,)),
    "fourier in two": (lambda x: torch.fft.ifft2(torch.fft.fft2(x, norm="ortho").real ** 2).real, (4, 8)),
    "fourier back in two": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x)[..., :3], s=(4, 6)), (4, 8)),
    "angles": (lambda x: torch.fft.fftshift(torch.fft.rfft(x), dim=1).angle()[:, 1:4], (9,)),
    "complex": (lambda x: torch.view_as_real(torch.complex(x, x.flip(1)).conj() * torch.polar(x**2, x)), (4,)),
    "short transforms": (signal, (16,)),
    # matrices
    "solve": (lambda x: torch.linalg.solve(positive(x), x), MATRIX),
    "solve one": (lambda x: torch.linalg.solve(positive(x), x[..., 0]), MATRIX),
    "solve from the right": (lambda x: torch.linalg.solve(positive(x), x[:, :2], left=False), MATRIX),
    "triangles": (lambda x: torch.linalg.solve_triangular(factor(x), x, upper=False), MATRIX),
    "triangles from the right": (
        lambda x: torch.linalg.solve_triangular(factor(x).mT, x, upper=True, left=False), MATRIX
    ),
    "inverse": (lambda x: torch.linalg.inv(positive(x)), MATRIX),
    "pseudoinverse": (torch.linalg.pinv, (4, 3)),
    "cholesky": (lambda x: torch.linalg.cholesky(positive(x), upper=True), MATRIX),
    "by cholesky": (lambda x: torch.cholesky_solve(x, factor(x)) + torch.cholesky_inverse(factor(x)), MATRIX),
    "determinant": (torch.linalg.det, MATRIX),
    "log determinant": (lambda x: torch.linalg.slogdet(x)[1], MATRIX),
    "eigenvalues": (lambda x: torch.linalg.eigvalsh(positive(x)), MATRIX),
    "singular values": (torch.linalg.svdvals, (4, 3)),
    "singular vectors": (rebuilt, (4, 3)),
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), MATRIX),
    "exponential": (lambda x: torch.linalg.matrix_exp(0.3 * x), MATRIX),
    # order
    "median": (lambda x: x.median(-1).values, (6,)),
    "quantile": (lambda x: torch.quantile(x, 0.3, dim=-1), (7,)),
    "second": (lambda x: x.kthvalue(2, 1, keepdim=True).values, (7,)),
    "running": (lambda x: x.cummax(1).values - 2 * x.cummin(1).values + x.logcumsumexp(1), (7,)),
    "buckets": (lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)), (7,)),
    "own buckets": (lambda x: x * torch.searchsorted(x.detach().sort(1).values, x.detach(), right=True), (7,)),
    # places
    "windows": (lambda x: x.unfold(2, 3, 2) * x.unfold(1, 1, 1)[:, :, :3], (2, 8)),
    "pairs": (lambda x: torch.stack([F.pdist(row) for row in x]), (4, 3)),
    **{
        f"{reduce}, {'with' if own else 'without'} itself": (
            lambda x, reduce=reduce, own=own: into_bins(x, reduce, own), (6,)
        )
        for reduce in ("sum", "mean", "amax", "amin")
        for own in (True, False)
    },
    # images
    **{
        f"grid, {mode}, {padding}, {'corners' if corners else 'edges'}": (
            lambda x, mode=mode, padding=padding, corners=corners: at(
                x, mode=mode, padding_mode=padding, align_corners=corners
            ),
            IMAGE,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
    },
    "grid in three": (lambda x: at(x, align_corners=False), (2, 4, 6, 5)),
    "learned places": (learned, IMAGE),
    "affine": (turned, IMAGE),
    "smaller": (lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True), IMAGE),
    "smaller by cubics": (lambda x: F.interpolate(x, size=(3, 9), mode="bicubic", antialias=True), IMAGE),
    "to one pixel": (
        lambda x: F.interpolate(x, size=(1, 4), mode="bicubic", antialias=True, align_corners=True), IMAGE
    ),
    "smaller by a factor": (
        lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True, align_corners=True), IMAGE
    ),
    # functions
    "special": (
        lambda x: torch.special.erfcx(20 * x.abs()) + torch.special.ndtri(x.sigmoid()) + torch.special.log_ndtr(9 * x),
        (6,),
    ),
    "of bessel": (lambda x: torch.i0(x) + torch.special.i1(x) + torch.special.i0e(x) * torch.special.i1e(x), (6,)),
    "of gamma": (
        lambda x: torch.polygamma(1, x.abs() + 1) + torch.special.gammaincc(torch.ones_like(x), x.abs()), (6,)
    ),
    "of two": (lambda x: torch.hypot(x, x.flip(1)) + torch.copysign(x, x.flip(1)) + torch.exp2(x), (6,)),
    "of numbers": (lambda x: torch.fmax(x, x.flip(1)) - 2 * torch.fmin(x, 0 * x), (6,)),
    "shifts": (lambda x: x * (((BINS << 2) - 3) >> 1) * torch.bitwise_left_shift(BINS, BINS), (6,)),
    "at zero": (lambda x: torch.hypot(F.relu(x - 9.0), F.relu(x - 9.0)), (6,)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:What the module detaches")
@pytest.mark.parametrize("name", OPERATORS)
def test_outputs_and_gradients_are_those_of_torch(name):
    function, shape = OPERATORS[name]
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    module = Scaled(function, shape).double()
    expected = module(x)
    direction = torch.randn(expected.shape, generator=GENERATOR, dtype=torch.double)
    (expected * direction).sum().backward()
    network = from_torch(module, x)
    with double():
        found = network.apply(network.params, x.numpy())
        loss = lambda params: jnp.sum(network.apply(params, x.numpy()) * direction.numpy())  # noqa: E731
        gradient = jax.grad(loss)(network.params)["weight"]
        assert network.apply(network.params, x[:1].numpy()).shape == (1, *expected.shape[1:])
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gradient, module.weight.grad.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: into_bins(x, "prod", True), "scatter_reduce by 'prod' has no derivative"),
        (lambda x: torch.linalg.pinv(x.unflatten(1, (2, 3)), atol=0.1), "pinv with atol="),
    ],
)
def test_what_has_no_counterpart_is_said(function, sentence):
    x = torch.randn(3, 6, dtype=torch.double)
    with pytest.raises(credo.CredoError, match=sentence):
        from_torch(Scaled(function, (6,)).double(), x)


@pytest.mark.parametrize("name", ["solve one", "fourier"])
def test_such_networks_are_fitted(name):
    function, shape = OPERATORS[name]
    size = 5 if name == "fourier" else 4
    module = nn.Sequential(Scaled(function, shape), nn.Linear(size, 1)).double()
    x = torch.randn(30, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    network = from_torch(module, x)
    model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Gaussian(noise=0.3))
    target = model.given(x.numpy(), np.sin(x.numpy()).reshape(30, -1)[:, 0])
    for method in (credo.Laplace(), credo.SGLD(num_draws=10, num_warmup=10)):
        posterior = credo.fit(target, method, progress=False)
        assert np.isfinite(np.asarray(posterior.predict(x.numpy()).mean)).all()


OTHERS = {
    "elu at zero": lambda x: F.elu(x - 1.0),
    "selu at zero": lambda x: F.selu(x - 1.0),
    "celu at zero": lambda x: F.celu(x - 1.0),
    "powers with one of zero": lambda x: ((x - 1.0)[:, :, None] ** torch.arange(3.0, dtype=x.dtype)).flatten(1),
    "stable sort": lambda x: torch.sort(x, dim=1, stable=True)[0],
    "pinv with rtol": lambda x: torch.linalg.pinv(x.unflatten(1, (3, 3)), rtol=0.01).flatten(1),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x.unflatten(1, (3, 3)) + x.unflatten(1, (3, 3)).mT),
}


@pytest.mark.parametrize("name", OTHERS)
def test_outputs_and_gradients_where_they_once_differed(name):
    module = Scaled(OTHERS[name], (9,)).double()
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    x[:, 0] = 1.0  # times a weight of one
    network = from_torch(module, x)
    with double():
        z, pull = jax.vjp(lambda p: network.apply(p, jnp.asarray(x.numpy())), network.params)
        slope = pull(jnp.ones_like(z))[0]["weight"]
    found = module(x)
    found.sum().backward()
    np.testing.assert_allclose(z, found.detach().numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slope, module.weight.grad.numpy(), rtol=1e-8, atol=1e-8)


def test_eigenvalues_of_one_triangle_are_those_that_are_differentiated():
    from credo.adapters.aten.matrices import eigenvectors

    with double():
        a = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
        for triangle in "LU":
            value, _ = jax.value_and_grad(lambda a, t=triangle: eigenvectors(a, t)[0][0])(a)
            assert float(value) == pytest.approx(np.linalg.eigvalsh(a, triangle)[0], abs=1e-12)


def test_the_triangle_of_qr_alone():
    """Which torch has no gradient of."""
    module = Scaled(lambda x: torch.linalg.qr(x.unflatten(1, (3, 3)), mode="r")[1].flatten(1), (9,))
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    network = from_torch(module, x)
    np.testing.assert_allclose(network.apply(network.params, x.numpy()), module(x).detach().numpy(), atol=1e-5)
