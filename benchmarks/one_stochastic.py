"""One library's steps on minibatches in one process: ``sgmcmc.py`` starts it, and reads the JSON of its last line.

python one_stochastic.py "sgld mlp" blackjax 0

What is measured is run twice: the second run compiles nothing, and the difference is compilation.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np

SIZES = (64, 50, 50, 10)
ROWS = {"sgld logistic": 256, "sgld mlp": 128, "vi mlp": 128}
STEPS = {"sgld logistic": 100_000, "sgld mlp": 40_000, "vi mlp": 20_000}
INTERPRETED = 1_000  # steps of a loop that Python runs
EVERY = 100  # steps a draw that is kept
STEP_SIZE = 1e-6  # ε: half of it times the gradient, and noise of this variance
FIRST_SD = 0.01  # of the weights under mean-field VI
INNER = "one", "two", "last"


def data(problem: str) -> tuple[np.ndarray, np.ndarray]:
    if problem == "mlp":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (x / 16).astype(np.float32), y
    random = np.random.default_rng(0)
    x = random.normal(size=(100_000, 50))
    y = random.random(100_000) < 1 / (1 + np.exp(-x @ random.normal(size=50) / 5))
    return x.astype(np.float32), y.astype(np.int64)


def weights(problem: str) -> dict:
    if problem == "logistic":
        return {"w": np.zeros(50, np.float32)}
    random = np.random.default_rng(1)
    return {
        name: {"w": (random.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32), "b": np.zeros(b, np.float32)}
        for name, a, b in zip(INNER, SIZES[:-1], SIZES[1:], strict=True)
    }


def network(np_, params, x):
    for name in INNER[:-1]:
        x = np_.tanh(x @ params[name]["w"] + params[name]["b"])
    return x @ params["last"]["w"] + params["last"]["b"]


def outputs(np_, problem: str, params, x):
    return x @ params["w"] if problem == "logistic" else network(np_, params, x)


def twice(run, steps: int) -> dict[str, float]:
    seconds = []
    for _ in range(2):
        begun = process_time()
        run()
        seconds.append(process_time() - begun)
    return {"rate": steps / seconds[1], "compile": seconds[0] - seconds[1], "steps": steps}


def credo(task: str, key: int) -> dict:
    import jax.numpy as jnp

    import credo
    from credo.diagnose.verdict import judge
    from credo.posterior.kinds import Point
    from credo.posterior.posterior import Posterior

    kind, problem = task.split()
    x, y = data(problem)
    head = credo.nn.Bernoulli() if problem == "logistic" else credo.nn.Categorical()
    model = credo.nn.BayesianNetwork(lambda p, x: outputs(jnp, problem, p, x), weights(problem), head=head)
    target, steps = model.given(x, y), STEPS[task]
    flat = target.flat()
    start = Posterior(Point(np.asarray(flat.unconstrain(model.start))), target, verdict=judge({}), info={})
    if kind == "vi":
        method = credo.ADVI(batch_size=ROWS[task], max_steps=steps)
    else:
        method = credo.SGLD(
            chains=1,
            num_warmup=0,
            num_draws=steps // EVERY,
            num_steps=EVERY,
            batch_size=ROWS[task],
            step_size=STEP_SIZE,
            control_variates=False,
            preconditioner=credo.sgmcmc.UnitScale(),
        )
    return twice(lambda: credo.fit(target, method, key=key, start=start, precision="float32", progress=False), steps)


def log_likelihood(jax, jnp, problem: str, params, x, y):
    z = outputs(jnp, problem, params, x)
    if problem == "logistic":
        return y * z - jax.nn.softplus(z)
    return jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1)[:, 0]


def blackjax(task: str, key: int) -> dict:
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.sgmcmc.gradients import grad_estimator

    problem, steps, size = task.split()[1], STEPS[task], ROWS[task]
    x, y = (jnp.asarray(each) for each in data(problem))

    def log_prior(params):
        return sum(-0.5 * jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))

    def one(params, row):
        return log_likelihood(jax, jnp, problem, params, row[0][None], row[1][None])[0]

    sgld = blackjax.sgld(grad_estimator(log_prior, one, len(y)))

    @jax.jit
    def run(key, params):
        def step(params, key):
            k_rows, k_step = jax.random.split(key)
            rows = jax.random.randint(k_rows, (size,), 0, len(y))
            return sgld.step(k_step, params, (x[rows], y[rows]), STEP_SIZE / 2), None

        def draw(params, key):
            params, _ = jax.lax.scan(step, params, jax.random.split(key, EVERY))
            return params, params

        return jax.lax.scan(draw, params, jax.random.split(key, steps // EVERY))[1]

    params = jax.tree.map(jnp.asarray, weights(problem))
    return twice(lambda: jax.block_until_ready(run(jax.random.key(key), params)), steps)


def numpyro(task: str, key: int) -> dict:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.infer.initialization import init_to_value

    steps, size = STEPS[task], ROWS[task]
    x, y = (jnp.asarray(each) for each in data("mlp"))
    start = {f"{n}.{k}": jnp.asarray(leaf) for n, layer in weights("mlp").items() for k, leaf in layer.items()}

    def model(x, y):
        params = {
            name: {k: numpyro.sample(f"{name}.{k}", dist.Normal(0, 1).expand(s).to_event(len(s))) for k, s in shapes}
            for name, shapes in (
                (name, (("w", (a, b)), ("b", (b,)))) for name, a, b in zip(INNER, SIZES[:-1], SIZES[1:], strict=True)
            )
        }
        with numpyro.handlers.scale(scale=1797 / size), numpyro.plate("rows", size):
            numpyro.sample("y", dist.Categorical(logits=network(jnp, params, x)), obs=y)

    guide = AutoNormal(model, init_loc_fn=init_to_value(values=start), init_scale=FIRST_SD)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())

    @jax.jit
    def loop(state, key):
        def step(state, key):
            rows = jax.random.randint(key, (size,), 0, len(y))
            return svi.update(state, x[rows], y[rows])

        return jax.lax.scan(step, state, jax.random.split(key, steps))

    def run():
        state = svi.init(jax.random.key(key), x[:size], y[:size])
        jax.block_until_ready(loop(state, jax.random.key(key + 1)))

    return twice(run, steps)


def posteriors(task: str, key: int) -> dict:
    import torch

    sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).parent]  # has this name, too
    import posteriors

    problem, size = task.split()[1], ROWS[task]
    x, y = (torch.as_tensor(each) for each in data(problem))
    start = torch.utils._pytree.tree_map(torch.as_tensor, weights(problem))
    torch.manual_seed(key)
    torch.set_num_threads(1)

    def log_posterior(params, batch):
        z = outputs(torch, problem, params, batch[0])
        if problem == "logistic":
            loss = torch.nn.functional.binary_cross_entropy_with_logits(z, batch[1].float())
        else:
            loss = torch.nn.functional.cross_entropy(z, batch[1])
        squares = sum(torch.sum(leaf**2) for leaf in torch.utils._pytree.tree_leaves(params))
        return -loss - 0.5 * squares / len(y), torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=STEP_SIZE / 2 * len(y), temperature=1 / len(y))

    def run():
        state = transform.init(start)
        for _ in range(INTERPRETED):
            rows = torch.randint(len(y), (size,))
            state, _ = transform.update(state, (x[rows], y[rows]), inplace=False)

    return twice(run, INTERPRETED)


def bayesian_torch(task: str, key: int) -> dict:
    import torch
    from bayesian_torch.layers import LinearReparameterization

    size = ROWS[task]
    x, y = (torch.as_tensor(each) for each in data("mlp"))
    torch.manual_seed(key)
    torch.set_num_threads(1)

    class Layer(LinearReparameterization):
        def kl_div(self, mu_q, *others):
            return mu_q.numel() * super().kl_div(mu_q, *others)  # theirs is a mean over the weights, and no ELBO

    rho = float(np.log(np.expm1(FIRST_SD)))
    layers = torch.nn.ModuleList(Layer(a, b, posterior_rho_init=rho) for a, b in pairwise(SIZES))
    with torch.no_grad():
        for layer, start in zip(layers, weights("mlp").values(), strict=True):
            layer.mu_weight.copy_(torch.as_tensor(start["w"].T))
            layer.mu_bias.copy_(torch.as_tensor(start["b"]))
    optimiser = torch.optim.Adam(layers.parameters(), lr=1e-3)

    def run():
        for _ in range(INTERPRETED):
            rows = torch.randint(len(y), (size,))
            z, total = x[rows], 0.0
            for i, layer in enumerate(layers):
                z, kl = layer(torch.tanh(z) if i else z)
                total = total + kl
            loss = torch.nn.functional.cross_entropy(z, y[rows]) + total / len(y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return twice(run, INTERPRETED)


def pyro(task: str, key: int) -> dict:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.infer.autoguide.initialization import init_to_value

    size = ROWS[task]
    x, y = (torch.as_tensor(each) for each in data("mlp"))
    start = {f"{n}.{k}": torch.as_tensor(leaf) for n, layer in weights("mlp").items() for k, leaf in layer.items()}
    pyro.set_rng_seed(key)
    pyro.enable_validation(False)
    torch.set_num_threads(1)

    def model(x, y):
        params = {
            name: {
                "w": pyro.sample(f"{name}.w", dist.Normal(0.0, 1.0).expand([a, b]).to_event(2)),
                "b": pyro.sample(f"{name}.b", dist.Normal(0.0, 1.0).expand([b]).to_event(1)),
            }
            for name, a, b in zip(INNER, SIZES[:-1], SIZES[1:], strict=True)
        }
        with pyro.poutine.scale(scale=1797 / size), pyro.plate("rows", size):
            pyro.sample("y", dist.Categorical(logits=network(torch, params, x)), obs=y)

    guide = AutoNormal(model, init_loc_fn=init_to_value(values=start), init_scale=FIRST_SD)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())

    def run():
        for _ in range(INTERPRETED):
            rows = torch.randint(len(y), (size,))
            svi.step(x[rows], y[rows])

    return twice(run, INTERPRETED)


LIBRARIES = {
    "credo": credo,
    "blackjax": blackjax,
    "numpyro": numpyro,
    "posteriors": posteriors,
    "bayesian-torch": bayesian_torch,
    "pyro": pyro,
}


def main() -> None:
    task, library, key = sys.argv[1:]
    try:
        found = LIBRARIES[library](task, int(key))
    except ModuleNotFoundError as error:
        found = {"error": f"{error.name} is not installed"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
