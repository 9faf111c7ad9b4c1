"""Torch modules brought to JAX: outputs and gradients are torch's, weights go back, and what cannot be is said."""

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.adapters import from_torch, to_torch
from credo.adapters.aten.pointwise import rrelu
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Categorical, Gaussian
from credo.precision import double

torch = pytest.importorskip("torch", reason="it comes with the `oracles` extra")
nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """A second one would only wait for the other tests'."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Of(nn.Module):
    """``function`` of the inputs, times a weight."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.full((1,), 1.5))

    def forward(self, x):
        return self.w * self.function(x)


class Scaled(Of):
    """``function`` of the inputs times weights."""

    def __init__(self, function):
        super().__init__(function)
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.function(self.w * x)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(4, 2, 3)

    def forward(self, x):
        return self.layer(x, x[:, 1:3])


class LastToken(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x):
        return self.recurrent(x)[0][:, -1]


class States(nn.Module):
    """All outputs, and the states at the end, from a first state that is learned."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent
        r = recurrent
        count = r.num_layers * (1 + r.bidirectional)
        sizes = [r.proj_size or r.hidden_size] + [r.hidden_size] * isinstance(r, nn.LSTM)
        self.first = nn.ParameterList(torch.randn(count, 1, size) for size in sizes)

    def forward(self, x):
        first = tuple(each.expand(-1, len(x), -1) for each in self.first)
        out, end = self.recurrent(x, first if len(first) == 2 else first[0])
        end = end if isinstance(end, tuple) else (end,)
        return torch.cat([out.flatten(1), *(each.transpose(0, 1).flatten(1) for each in end)], 1)


class Attention(nn.Module):
    """An embedding tied to the output, and attention between."""

    def __init__(self, is_tied=True):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 9 if is_tied else 3, bias=not is_tied)
        if is_tied:
            self.out.weight = self.table.weight

    def forward(self, tokens):
        h = self.table(tokens)
        return self.out((h + self.attention(h, h, h)[0]).mean(1))


def convolutional():
    layers = (nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3))
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 4))
    with torch.no_grad():
        module(1.0 + 2.0 * torch.randn(64, 1, 8, 8))  # statistics that are not 0 and 1
    return module.eval()


def smooth():
    kinds = (nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Tanhshrink)
    return (*(kind() for kind in kinds), nn.GELU(approximate="tanh"), nn.Softplus(2.0, 0.3), nn.LogSigmoid())


def kinked():
    kinds = (
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.Hardtanh,
        nn.ReLU6,
        nn.LeakyReLU,
        nn.RReLU,
        nn.PReLU,
        nn.Hardshrink,
        nn.Softshrink,
    )
    return tuple(kind() for kind in kinds)


def shuffled(x):
    """Moves of entries, of all kinds."""
    y = torch.stack(list(x.roll(1, 1).unbind(1)), 2).flip(2).tril() + x.gather(1, x.argsort(1))
    y = y + torch.cat([x[:, :2], x[:, 2:]], 1).masked_fill(x > 0, 0.0) + x.sort(1, descending=True)[0]
    y = y + x.repeat(1, 2, 1)[:, 1::2] + x.topk(4, 2).values + F.pad(x, (1, 2, -1, 1))[:, :, :4]
    return y + torch.diag_embed(x.diagonal(dim1=1, dim2=2)) + x.index_select(2, torch.tensor([3, 1, 0, 2]))


def reduced(x):
    y = torch.einsum("nij,nkj->nik", x, x).var(1) + torch.linalg.vector_norm(x, dim=-1) + x.std(2) + x.prod(2)
    y = y + x.cumsum(1).max(2).values + x.logsumexp(2) + x.amin(2) + x.argmax(2) + (x > 0).any(2) + F.normalize(x)[:, 0]
    return y + x.norm(dim=2) + x.abs().mean((1, 2))[:, None] + torch.cdist(x, x).sum(1) + x.softmax(1).log().sum(2)


def arithmetic(x):
    y = x.clamp(-1, 1).pow(2).sqrt() + x.div(3, rounding_mode="floor") + x.remainder(2) + x.fmod(0.7) + 2**x + 1 - x
    y = (
        y
        + torch.where(x > 0, x, 0.0)
        + torch.atan2(x, x + 2)
        + torch.erf(x)
        + x.sigmoid().log1p()
        + torch.arange(4) / 2
    )
    return y + torch.nan_to_num(x) + torch.maximum(x, -x) + x.double().exp().float() + x.round() + torch.rsqrt(x**2 + 1)


def by_mask(x):
    y = x.clone()
    y[x > 0.5] = 0.25
    y[:, 1:3] += 1.0
    return y


MODULES = {
    "convolution": (convolutional(), (3, 1, 8, 8)),
    "smooth": (nn.Sequential(nn.Linear(4, 4), *smooth(), nn.LogSoftmax(1)), (3, 4)),
    "kinked": (nn.Sequential(*kinked()), (3, 4)),
    "in one dimension": (
        nn.Sequential(
            nn.Conv1d(4, 8, 3, groups=2, padding="same", padding_mode="circular"),
            nn.AvgPool1d(2),
            nn.AdaptiveMaxPool1d(3),
        ),
        (3, 4, 8),
    ),
    "in three": (
        nn.Sequential(
            nn.Conv3d(2, 4, 3, dilation=(1, 2, 1), stride=(1, 1, 2), padding=(1, 0, 2)),
            nn.MaxPool3d(2, padding=1, ceil_mode=True),
            nn.AvgPool3d(2, 1),
            nn.ReflectionPad3d(1),
        ),
        (2, 2, 6, 9, 16),
    ),
    "transposed": (
        nn.Sequential(
            nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.PixelShuffle(2),
            nn.ConvTranspose2d(2, 3, (2, 3), dilation=2, stride=(1, 2)),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        ),
        (2, 4, 4, 4),
    ),
    "pools and pads": (
        nn.Sequential(
            nn.ZeroPad2d((1, -1, 2, 0)),
            nn.ReplicationPad2d(2),
            nn.MaxPool2d(3, 2, 1, dilation=2),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            nn.AvgPool2d(2, count_include_pad=False, padding=1),
            nn.AdaptiveAvgPool2d((3, 2)),
            nn.Upsample(scale_factor=2),
            nn.Unfold(2),
            nn.Linear(15, 2),
        ),
        (2, 2, 16, 17),
    ),
    "normalisations": (
        nn.Sequential(
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.LayerNorm((5, 4)),
            nn.RMSNorm(4),
            nn.LocalResponseNorm(2),
        ),
        (3, 4, 5, 4),
    ),
    "reparametrised": (
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
        ),
        (3, 3),
    ),
    "lstm": (LastToken(nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)), (3, 4, 3)),
    "products": (Products(), (3, 4)),
    "gru": (LastToken(nn.GRU(3, 4, batch_first=True)), (3, 4, 3)),
    "gru both ways": (States(nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True)), (3, 5, 3)),
    "projected lstm": (States(nn.LSTM(3, 4, num_layers=2, proj_size=2, batch_first=True)), (3, 5, 3)),
    "projected without biases": (States(nn.LSTM(3, 4, proj_size=2, bias=False, batch_first=True)), (3, 5, 3)),
    "elman": (States(nn.RNN(3, 4, nonlinearity="relu", bias=False, bidirectional=True, batch_first=True)), (3, 5, 3)),
    "elman's tanh": (States(nn.RNN(3, 4, num_layers=2, dropout=0.5, batch_first=True)), (3, 5, 3)),
    "transformer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, activation="gelu"), (2, 3, 4)),
    "causal": (Of(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), (2, 2, 5, 4)),
    "tied attention": (Attention(), "tokens"),
    "one hot": (Of(lambda x: F.one_hot(x, 9).float()), "tokens"),
    "moved": (Of(shuffled), (3, 4, 4)),
    "reduced": (Of(reduced), (3, 4, 4)),
    "arithmetic": (Of(arithmetic), (3, 4)),
    "by mask": (Of(by_mask), (3, 4)),
    "bags": (nn.EmbeddingBag(9, 4, mode="mean"), "tokens"),
    "largest of bags": (nn.EmbeddingBag(9, 4, mode="max", padding_idx=2), "tokens"),
    "a pair": (Of(lambda x: x.chunk(2, 1)[0]), (3, 4)),
    "rows fixed at one by the code": (Of(lambda x: torch.stack([row.sum() * torch.ones(2) for row in x])), (3, 4)),
}


def rows(shape, num=None):
    if shape == "tokens":
        return torch.randint(0, 9, (num or 3, 5))
    return torch.randn(num or shape[0], *shape[1:])


@pytest.mark.filterwarnings("ignore:(Dropout|Batch norm|Tied|The rows of padding|LSTM with projections)")
@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_torch(name):
    module, shape = MODULES[name]
    module = module.eval()
    network = from_torch(module, rows(shape))
    for num in (1, 5):
        x = rows(shape, num)
        with torch.no_grad():
            expected = module(x).numpy()
        found = np.asarray(network.apply(network.params, x.numpy()))
        assert found.dtype == np.float32
        # rounding at the scale of the outputs; 1e-5 leaves room for the sums of the longest of these programs
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max()))


class Named(nn.Linear):
    def __init__(self, function):
        super().__init__(3, 4)
        self.function = function

    def forward(self, x):
        return self.function(*super().forward(x).chunk(2, 1))


def test_outputs_by_name_keep_their_names():
    """In whatever order the module sets them; what it returns as None is left out."""
    module, x = Named(lambda mean, other: {"mean": mean, "deviation": other.exp(), "state": None}), rows((4, 3))
    network = from_torch(module, x)
    assert network.notes == ()
    found, expected = network.apply(network.params, x.numpy()), module(x)
    for name in ("mean", "deviation"):
        np.testing.assert_allclose(found[name], expected[name].detach(), rtol=1e-5)


def test_a_single_row_keeps_its_axis():
    """torch's squeeze takes the axis of rows as well where there is one row; a likelihood needs it."""
    network = from_torch(Of(lambda x: x[:, 0].squeeze()), rows((3, 1, 4)))
    assert network.apply(network.params, np.ones((1, 1, 4), np.float32)).shape == (1, 4)


@pytest.mark.filterwarnings("ignore:(Dropout|Batch norm|Tied)")
@pytest.mark.parametrize(
    "name", ["convolution", "smooth", "products", "lstm", "transformer", "tied attention", "reduced"]
)
def test_gradients_are_those_of_torch(name):
    module, shape = MODULES[name]
    module = copy.deepcopy(module).double().eval()
    x = rows(shape).double() if shape != "tokens" else rows(shape)
    network = from_torch(module, x)
    direction = torch.randn(module(x).shape, dtype=torch.float64)
    (module(x) * direction).sum().backward()
    with double():
        loss = lambda params: jnp.sum(network.apply(params, x.numpy()) * direction.numpy())  # noqa: E731
        found = jax.grad(loss)(network.params)
    for path, gradient in jax.tree_util.tree_leaves_with_path(found):
        expected = dict(module.named_parameters())[".".join(part.key for part in path)].grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Dropout|Batch norm")
@pytest.mark.parametrize(
    ("module", "shape", "rest"),
    [
        (convolutional(), (1, 8, 8), {"1.weight"}),
        (Attention(is_tied=False), "tokens", set()),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 4), {"norm1.weight", "norm2.weight"}),
        (LastToken(nn.LSTM(3, 4, batch_first=True)), (4, 3), set()),
        (States(nn.GRU(3, 4, 2, bidirectional=True, batch_first=True)), (4, 3), {"first.0"}),
        (nn.Sequential(nn.ConvTranspose1d(2, 3, 3, stride=2), nn.Flatten(), nn.Linear(27, 2)), (2, 4), set()),
    ],
    ids=["convolution", "attention", "transformer", "lstm", "gru", "transposed"],
)
def test_layers_are_found_in_torch_networks(module, shape, rest):
    """The Jacobian is made of the layers' inputs and derivatives; what is in no layer is named."""
    x = rows((3, *shape) if shape != "tokens" else shape).numpy()
    network = from_torch(module.eval(), x)
    with double():
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), network.params)
        u, unravel = jax.flatten_util.ravel_pytree(params)
        outputs = lambda u, row: network.apply(unravel(u), row[None]).ravel()  # noqa: E731
        row = jnp.asarray(x[0], None if x.dtype == np.int64 else jnp.float64)
        layers = find_layers(outputs, u, row)
        jacobian = np.asarray(jax.jacrev(outputs)(u, row))
        z, inputs, back = layers.linearised(u, row)
        derivatives = jax.vmap(back)(jnp.eye(len(z)))
    found = np.full_like(jacobian, np.nan)
    for layer, a_uses, g_uses in zip(layers.layers, inputs, derivatives, strict=True):
        found[:, layer.index] = sum(np.einsum("si,kso->kio", a, g) for a, g in zip(a_uses, g_uses, strict=True))
    names = np.concatenate(
        [[".".join(k.key for k in path)] * leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    )
    assert set(names[layers.rest]) == rest
    covered = np.setdiff1d(np.arange(u.size), layers.rest)
    np.testing.assert_allclose(found[:, covered], jacobian[:, covered], atol=1e-9)


def attention_to_positive(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=(x > 0).transpose(2, 3))[:, 0, :, 0]


EDGES = {
    "bounds of clamp": lambda x: x.clamp(-1, 1),
    "bounds of hardtanh": F.hardtanh,
    "a large celu": lambda x: F.celu(1000 * x),
    "the origin of sinc": torch.sinc,
    "next to the origin of sinc": lambda x: torch.sinc(1e-170 * x) + torch.sinc(0.005 * x) + torch.sinc(1e3 * x),
    "corners": lambda x: (x - 1).abs() + torch.copysign(x - 1, x) + torch.i0(x - 1),
    "entries of zero in norms": lambda x: torch.stack(
        [torch.linalg.vector_norm(x - 1, p, dim=1) for p in (-1, 0.5, 1, 1.5, 2, float("inf"))], 1
    ),
    "distances by one axis": lambda x: torch.cdist(x[:, :, None], torch.ones(1, 1, 1).to(x), p=1.0).flatten(1),
    "the origin of atan2": lambda x: torch.atan2(x, 2 * x),
    "equal entries": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 0.1),
    "ties of two": lambda x: torch.fmax(x - 1, 0 * x) - 2 * torch.fmin(torch.tensor(float("nan")).to(x), x + 1),
    "ties": lambda x: x.max(1).values - x.min(1).values,
    "all masked": lambda x: attention_to_positive(x[:, None, :, None]),
}


@pytest.mark.parametrize("name", EDGES)
def test_gradients_at_edges_are_those_of_torch(name):
    """Where a function has none, torch takes one: so does JAX, and never no number."""
    x = torch.tensor([[1.0, -1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, 2.0, -1.0, -1.0]], dtype=torch.float64)
    module = Scaled(EDGES[name]).double()
    network = from_torch(module)
    direction = torch.arange(1.0, 1.0 + module(x).numel(), dtype=torch.float64).reshape(module(x).shape)
    (module(x) * direction).sum().backward()
    with double():
        z = lambda params: jnp.sum(network.apply(params, x.numpy()) * direction.numpy())  # noqa: E731
        found = jax.grad(z)(network.params)["w"]
    np.testing.assert_allclose(found, module.w.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_sums_of_small_integers_do_not_wrap():
    x = torch.full((3, 4), 250, dtype=torch.uint8)
    network = from_torch(Of(lambda x: (x.sum(1) - 2000 + x.cumsum(1)[:, 3] + x[:, :2].prod(1)).float()))
    assert network.apply(network.params, x.numpy()).tolist() == [1.5 * (1000 - 2000 + 1000 + 62500)] * 3


class Hashed(nn.Embedding):
    def forward(self, x):
        return super().forward(x * 1_000_003 % 1_000)


class OfTime(nn.Linear):
    """Of milliseconds since 1970."""

    def forward(self, x):
        return super().forward((x - 1_600_000_000_000) / 1e11)


class OfBytes(nn.Conv2d):
    def forward(self, x):
        return super().forward(x / 255)


WHOLE = {
    "hashes": (Hashed(1_000, 2), np.array([123_456, 99_999, 5])),
    "times": (OfTime(1, 2), np.array([[1_700_000_000_000], [1_600_000_000_123], [1_650_000_000_000]])),
    "bytes": (OfBytes(1, 2, 3), np.arange(75, dtype=np.uint8).reshape(3, 1, 5, 5)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_have_64_bits(name):
    """As torch's have, and weights the precision that they are of."""
    module, x = WHOLE[name]
    expected = module(torch.from_numpy(x)).detach().numpy()
    network = from_torch(module, x)
    for apply in (network.apply, jax.jit(lambda params, _: network.apply(params, x))):
        found = apply(network.params, x)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_hashes_stay_within_a_program_of_32_bits():
    module, x = WHOLE["hashes"]
    network = from_torch(module, np.arange(3))
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_array_equal(jax.jit(network.apply)(network.params, x), expected)


# made Bayesian and sent back ------------------------------------------------------------------------------------------


def test_a_linear_module_has_the_posterior_of_linear_regression_and_takes_it_back():
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.random.default_rng(1).normal(size=12)
    module = nn.Linear(2, 1, bias=False)
    network = from_torch(module)  # read when it meets data
    model = BayesianNetwork(network.apply, network.params, head=Gaussian(0.5))
    posterior = credo.fit(model.given(x, y), credo.Laplace(), progress=False)
    expected = np.linalg.solve(x.T @ x / 0.25 + np.eye(2), x.T @ y / 0.25)
    np.testing.assert_allclose(posterior.mean()["weights"]["weight"][0], expected, rtol=1e-8)
    before = module.weight.detach().clone()
    back = to_torch(module, posterior.mean()["weights"])
    np.testing.assert_allclose(back.weight.detach().numpy()[0], expected, rtol=1e-6)
    assert back.weight.dtype == torch.float32
    assert torch.equal(module.weight, before)


@pytest.mark.filterwarnings("ignore:Batch norm|Dropout")
def test_kronecker_laplace_of_a_convolutional_network():
    x = rows((40, 1, 8, 8)).numpy()
    y = (x.mean((1, 2, 3)) > 0).astype(int)
    module = convolutional()
    network = from_torch(module, x)
    model = BayesianNetwork(network.apply, network.params, head=Categorical())
    posterior = credo.fit(model.given(x, y), credo.Laplace(credo.laplace.Kronecker()), progress=False)
    predictive = posterior.predict(x[:3])
    assert predictive.probs.shape == (3, 4)
    draw = jax.tree.map(lambda leaf: leaf[0], posterior.sample(0, 1)["weights"])
    back = to_torch(module, draw)
    with torch.no_grad():
        logits = back(torch.from_numpy(x[:3])).numpy()
    found = network.apply(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), draw), x[:3])
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(back[1].running_var, module[1].running_var)


def test_weights_go_there_and_back():
    module = Attention().eval()
    with pytest.warns(UserWarning, match="Tied weights stand once, under their first name: table.weight = out.weight"):
        network = from_torch(module)
    assert set(network.params) == {"table", "attention"}
    changed = jax.tree.map(lambda leaf: leaf + 1.0, network.params)
    back = to_torch(module, changed)
    assert back.out.weight is back.table.weight
    with pytest.warns(UserWarning, match="Tied"):
        again = from_torch(back).params
    jax.tree.map(np.testing.assert_array_equal, again, changed)
    flat = {name: p.detach().numpy() for name, p in module.named_parameters()}
    assert torch.equal(to_torch(back, flat).table.weight, module.table.weight)


# what is frozen is said -----------------------------------------------------------------------------------------------


def test_what_is_frozen_is_said_and_constant():
    module = convolutional().train()
    module[0].bias.requires_grad_(False)
    statistics = module[1].running_mean.clone()
    sentences = (
        r"Batch normalisation \(1\) keeps the means and variances of training.*Dropout \(4\) is off.*in training mode"
        r".*without requires_grad \(0.bias\) are constants"
    )
    x = rows((3, 1, 8, 8))
    with pytest.warns(UserWarning, match=sentences):
        network = from_torch(module, x)
    assert len(network.notes) == 4
    assert set(network.params["0"]) == {"weight"}
    assert set(network.params["1"]) == {"weight", "bias"}
    assert module.training
    assert torch.equal(module[1].running_mean, statistics)
    with torch.no_grad():
        expected = module.eval()(x)
    np.testing.assert_allclose(network.apply(network.params, x.numpy()), expected, rtol=1e-4, atol=1e-5)


def test_statistics_that_met_no_data_are_said():
    with pytest.warns(UserWarning, match="Those of 1 have met no data yet"):
        from_torch(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


# requests that cannot be answered -------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return self.w * x


class Last(nn.Module):
    """A recurrence that was meant to have its rows first, read at its last place."""

    def __init__(self, layer, end=-1):
        super().__init__()
        self.layer, self.end = layer, end

    def forward(self, x):
        return self.layer(x if self.end else x.flip(0))[0][:, self.end]


class Ends(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Keeping(nn.Linear):
    """As torch.nn.utils.weight_norm leaves a layer: beside its weights lies what was computed from them."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.doubled = 2 * self.weight


def set_by_mask(x):
    y = x.clone()
    y[x > 0] = x[x > 0] / 2
    return y


def mixed():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(2, 2))


WRONG = {
    "no module": (lambda: (np.tanh, (3, 2)), "takes a torch.nn.Module; got ufunc"),
    "no weights": (lambda: (nn.ReLU(), (3, 2)), "no weights to be uncertain of"),
    "mixed precision": (lambda: (mixed(), (3, 2)), "0.weight is float32, 1.weight is float64"),
    "half precision": (lambda: (nn.Linear(2, 2).half(), (3, 2)), "The weights are float16"),
    "lazy": (lambda: (nn.LazyLinear(2), (3, 2)), "have no shape yet"),
    "wrong inputs": (lambda: (nn.Linear(2, 2), (3, 4)), "fails on inputs of shape"),
    "random": (lambda: (Of(F.dropout), (3, 2)), "draws random numbers"),
    "random alike": (lambda: (Of(lambda x: x + torch.randn_like(x)), (3, 2)), "draws random numbers"),
    "scripted": (lambda: (scripted(), (3, 2)), "compiled by torch.jit"),
    "no values": (lambda: (nn.Linear(2, 2, device="meta"), (3, 2)), "device 'meta', which has shapes and no values"),
    "mean over rows": (lambda: (Of(lambda x: x - x.mean(0)), (3, 2)), "changes with the rows beside it"),
    "rows on the second axis": (lambda: (Last(nn.GRU(3, 4)), (4, 5, 3)), "another axis than the first.*batch_first"),
    "backwards": (lambda: (Last(nn.GRU(3, 4), end=0), (4, 5, 3)), "another axis than the first.*batch_first"),
    "computed weights": (lambda: (Keeping(3, 2), (4, 3)), "parametrizations.weight_norm"),
    "no number": (lambda: (Of(lambda x: x / (x - x)), (3, 2)), "no finite numbers at the example rows"),
    "statistics of the batch": (
        lambda: (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)), (3, 2)),
        "changes with the rows beside it",
    ),
    "unfrozen statistics": (
        lambda: (Of(lambda x: F.batch_norm(x, torch.zeros(2), torch.ones(2), training=True)), (3, 2)),
        "statistics of|changes with the rows|changes its buffers",
    ),
    "unknown": (lambda: (Of(torch.special.bessel_j0), (3, 2)), "operator aten.special_bessel_j0.default, at `"),
    "branch": (lambda: (Of(lambda x: x if x.sum() > 0 else -x), (3, 2)), "torch.export cannot read the module"),
    "changed buffer": (lambda: (Counting(), (3, 2)), "changes its buffers count"),
    "too few outputs": (lambda: (Of(lambda x: x.sum()), (3, 2)), "for 3 rows|changes with the rows"),
    "mask": (lambda: (Of(lambda x: x[x > 0]), (3, 2)), "selects entries by a mask|torch.export cannot read"),
    "set by mask": (lambda: (Of(set_by_mask), (3, 2)), r"selects entries by a mask.*torch\.where"),
    "bounded rows": (lambda: (nn.Embedding(4, 2, max_norm=1.0), (3, 2)), "max_norm.*so that they are no parameters"),
    "indices of pooling": (
        lambda: (Of(lambda x: F.max_pool2d(x, 2, return_indices=True)[1] + x[..., :1, :1]), (3, 1, 2, 2)),
        "cannot be run in JAX.*indices of a pooling",
    ),
    "no gradient": (lambda: (Ends(), (3, 2)), "No output of the module has a gradient.*torch.no_grad"),
    "no tensor": (lambda: (Named(lambda mean, other: (mean, "state")), (3, 3)), "an object of type str, and outputs"),
    "no rows": (lambda: (nn.Linear(2, 2), ()), "Example inputs are rows"),
}


class Automatic(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


def test_tensors_that_numpy_does_not_know():
    """Of half precision, sparse, or with a gradient: as examples, data and arguments, and as outputs."""
    x = torch.randn(5, 3)
    module = nn.Linear(3, 2)
    network = from_torch(module, x.bfloat16().requires_grad_())
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(network.apply(network.params, x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network.apply(network.params, x.to_sparse()), expected, rtol=1e-5, atol=1e-6)
    model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    target = model.given(x.bfloat16(), torch.zeros(5, dtype=torch.int64))
    np.testing.assert_array_equal(target.x, x.bfloat16().float().numpy())
    with pytest.warns(UserWarning, match="bfloat16 is computed in the precision of the weights"):
        half = from_torch(Automatic(3, 2), x)
    assert np.asarray(half.apply(half.params, x)).shape == (5, 2)
    with pytest.raises(credo.CredoError, match="device 'meta'"):
        model.given(x.to("meta"), np.zeros(5, int))


def test_a_slope_that_is_drawn_is_no_network():
    with pytest.raises(credo.CredoError, match="draws random numbers"):
        rrelu(np.ones(2), None, training=True)


def test_the_gradient_of_a_dilated_pooling_is_torchs():
    """Entries of a window may be equal, as zeros after a ReLU are."""
    layers = nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True), nn.Flatten()
    module = nn.Sequential(*layers, nn.Linear(32, 2))
    x = torch.randn(3, 1, 9, 9)
    network = from_torch(module, x)
    module(x).sum().backward()
    slopes = jax.grad(lambda params: network.apply(params, x.numpy()).sum())(network.params)
    np.testing.assert_allclose(slopes["0"]["weight"], module[0].weight.grad, rtol=1e-4, atol=1e-5)


def test_torch_says_nothing_beside_the_sentence(capfd):
    with pytest.raises(credo.CredoError, match="torch.export cannot read the module"):
        from_torch(Of(lambda x: x if x.sum() > 0 else -x), rows((3, 2)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", WRONG)
def test_modules_that_cannot_be_brought(name):
    made, sentence = WRONG[name]
    module, shape = made()
    x = torch.randn(*shape) if shape else torch.tensor(1.0)
    with pytest.raises(credo.CredoError, match=sentence):
        from_torch(module.eval() if isinstance(module, nn.Module) else module, x)


def test_weights_that_do_not_fit():
    module = nn.Linear(3, 2)
    good = from_torch(module).params
    wrong = {
        "lack bias": {"weight": good["weight"]},
        "have w, which the network has not": {**good, "w": np.zeros(2)},
        r'posterior.mean\(\)\["weights"\], not': {"weights": good},
        "give one draw of them": jax.tree.map(lambda leaf: np.stack([leaf, leaf]), good),
        r"shape \(3, 2\), and the network's is \(2, 3\)": {**good, "weight": good["weight"].T},
        "'bias' is int64": {**good, "bias": np.zeros(2, int)},
        "'bias' is not finite": {**good, "bias": np.full(2, np.nan)},
    }
    for sentence, weights in wrong.items():
        with pytest.raises(credo.CredoError, match=sentence):
            to_torch(module, weights)
    with pytest.raises(credo.CredoError, match="takes the torch module"):
        to_torch(good, good)


class OfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1), nn.Linear(3, 1)

    def forward(self, wide, narrow):
        return self.first(narrow) - self.second(wide)


def test_modules_of_several_inputs():
    module = OfTwo()
    wide, narrow = rows((4, 3)), rows((4, 2))
    expected = module(wide, narrow).detach().numpy()
    by_name, in_order = {"wide": wide, "narrow": narrow}, (wide, narrow)
    for x in (by_name, in_order):
        network = from_torch(module, x)
        x = jax.tree.map(lambda leaf: leaf.numpy(), x, is_leaf=lambda leaf: isinstance(leaf, torch.Tensor))
        np.testing.assert_allclose(network.apply(network.params, x), expected, rtol=1e-5)
    network = from_torch(module)
    columns = {name: leaf.numpy() for name, leaf in by_name.items()}
    target = BayesianNetwork(network.apply, network.params, head=Gaussian(1.0)).given(columns, np.zeros(4))
    assert target.dim == 7


@pytest.mark.filterwarnings("ignore:The rows of padding")
def test_padding_rows_are_constants():
    """torch's training leaves them as they are; the prior would give them any value."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4, padding_idx=2)
            self.out = nn.Linear(4, 2)

        def forward(self, tokens):
            return self.out(self.table(tokens).mean(1))

    tokens = np.random.default_rng(0).integers(0, 5, size=(60, 3))
    module = Words()
    with torch.no_grad():
        module.table.weight[2] = torch.tensor([0.5, -1.0, 0.0, 2.0])
    network = from_torch(module, tokens)
    assert any("padding_idx" in note and "table.weight" in note for note in network.notes)
    moved = {**network.params, "table": {"weight": network.params["table"]["weight"] + 3.0}}
    with torch.no_grad():
        module.table.weight[[0, 1, 3, 4]] += 3.0
        expected = module(torch.as_tensor(tokens)).numpy()
    np.testing.assert_allclose(network.apply(moved, tokens), expected, atol=1e-5)
    target = BayesianNetwork(network.apply, network.params, head=Gaussian(0.5)).given(tokens, expected)
    method = credo.Laplace(structure=credo.laplace.Kronecker(), num_steps=0)
    posterior = credo.fit(target, method, key=0, progress=False)
    assert not any("exact diagonal" in sentence for sentence in posterior.verdict.sentences)
    again = to_torch(module, moved)
    np.testing.assert_allclose(again.table.weight[2].detach(), [0.5, -1.0, 0.0, 2.0])
    np.testing.assert_allclose(again.table.weight[0].detach(), moved["table"]["weight"][0], rtol=1e-6)


@pytest.mark.parametrize("layer", [nn.Embedding(7, 2), nn.EmbeddingBag(7, 2)], ids=["table", "bag"])
@pytest.mark.parametrize("token", [7, -1])
def test_tokens_beyond_a_table_are_refused(layer, token):
    """As torch does; JAX reads the last row in their place."""
    module = nn.Sequential(layer, nn.Flatten())
    network = from_torch(module)
    tokens = np.array([[0, 1], [2, 3], [4, token]])
    model = BayesianNetwork(network.apply, network.params, head=Gaussian(1.0))
    with pytest.raises(credo.CredoError, match=rf" at {token} \(in row [25]\).*(there are 7 entries|0 to 6)"):
        model.given(tokens, np.zeros(module(torch.zeros(3, 2, dtype=torch.long)).shape))


# gradients that are not those of the outputs ------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    """Rounding whose gradient is one."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class StraightThrough(nn.Linear):
    def forward(self, x):
        z = super().forward(x)
        return z + (torch.round(z) - z).detach()


class Features(nn.Module):
    """A part of it is not trained, and inside of that part one is."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            features = self.first(x).tanh()
            with torch.enable_grad():
                trained = self.second(x)
            both = features * trained
        return self.third(features + both + trained)


class Own(nn.Linear):
    def forward(self, x):
        return Rounded.apply(super().forward(x))


@pytest.mark.filterwarnings("ignore:What the module detaches")
@pytest.mark.parametrize("kind", [lambda: StraightThrough(3, 2), Features], ids=["straight through", "no_grad"])
def test_what_torch_does_not_differentiate_has_no_derivative_here(kind):
    module, x = kind().double(), rows((5, 3)).double()
    network = from_torch(module, x)
    module(x).square().sum().backward()
    with double():
        found = jax.grad(lambda params: jnp.sum(jnp.square(network.apply(params, x.numpy()))))(network.params)
    for path, gradient in jax.tree_util.tree_leaves_with_path(found):
        expected = dict(module.named_parameters())[".".join(part.key for part in path)].grad
        expected = np.zeros(gradient.shape) if expected is None else expected.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x).bfloat16().float()


class RootAtZero(nn.Linear):
    def forward(self, x):
        z = super().forward(x)
        return (z - z).sqrt() + z


def hooked():
    module = nn.Linear(3, 2)
    module.weight.register_hook(lambda gradient: 0 * gradient)
    return module


SAID = {
    "straight through": (lambda: StraightThrough(3, 2), r"detaches of its weights.*at `return z \+ \(torch.round"),
    "hook": (hooked, "What hooks make of the gradients of weight is left out"),
    "half precision": (lambda: Halved(3, 2), "What torch computes in bfloat16 is computed in the precision"),
    "no_grad": (Features, r"detaches of its weights under torch.no_grad\(\)"),
    "a root at zero": (lambda: RootAtZero(3, 2), r"no finite derivative by weight, bias at these rows.*a root"),
    "own backward": (lambda: Own(3, 2), r"The gradient that torch has by 'weight' is not the derivative.*off by 100%"),
}


@pytest.mark.parametrize("name", SAID)
def test_gradients_that_are_not_those_of_the_outputs_are_said(name):
    made, sentence = SAID[name]
    module, x = made(), rows((5, 3))
    with pytest.warns(UserWarning, match=sentence):
        network = from_torch(module, x)
    assert len(network.notes) == 1
    if name != "hook":
        network = from_torch(module)
        with pytest.warns(UserWarning, match=sentence):
            network.apply(network.params, x.numpy())


def test_what_is_detached_of_the_inputs_alone_is_not_said():
    assert from_torch(Of(lambda x: x + x[...].detach() + torch.tensor(2.0)), rows((4, 3))).notes == ()


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        self.table, self.encoder, self.out = nn.Embedding(9, 4), nn.TransformerEncoder(layer, 2), nn.Linear(4, 2)

    def forward(self, tokens):
        return self.out(self.encoder(self.table(tokens), src_key_padding_mask=tokens == 0).mean(1))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_padding_masks_are_those_of_training(is_frozen):
    """torch's fast path, which it takes without gradients, has zeros where the mask hides."""
    module, tokens = Padded().eval(), torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1]])
    module.encoder.requires_grad_(not is_frozen)
    with pytest.warns(UserWarning, match="fast path of attention gives other outputs here.*zeros at the places"):
        network = from_torch(module, tokens)
    assert torch.backends.mha.get_fastpath_enabled()
    expected = Padded()
    expected.load_state_dict(module.state_dict())
    expected = expected.eval()(tokens).detach().numpy()
    np.testing.assert_allclose(network.apply(network.params, tokens.numpy()), expected, rtol=1e-4, atol=1e-5)
