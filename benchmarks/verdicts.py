"""False passes and false alarms of NUTS's verdict, from dispersed starts (``--keys 20``, ``--models``, ``--method``).

A pass is false where a mean or a mean square of a scalar lies 5 standard errors or more from the truth. On posteriors
that defeat NUTS none may be; on well-behaved ones a verdict other than "pass" is a false alarm, at 4 × 1,000 draws
(ChEES: 16 × 500).
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from posteriors import breast_cancer, eight_schools, radon, stochastic_volatility, synthetic_logistic

import credo
from credo.diagnose.convergence import mcse_mean

METHODS = {"NUTS": credo.NUTS, "ChEES": credo.ChEES, "HMC": credo.HMC}
BOUND = 5.0  # standard errors: one false alarm in 1.7 million scalars whose errors are Gaussian


class Entry(NamedTuple):
    """``monitored(posterior)``: draws (chain, draw, k); ``truth``: their means and mean squares, or a target and
    method that know them."""

    target: Callable
    monitored: Callable
    truth: Callable
    is_hard: bool


# targets --------------------------------------------------------------------------------------------------------------


def centred_schools():
    data = eight_schools.data()
    prior = {
        "mu": dist.Normal(0.0, 5.0),
        "tau": dist.HalfCauchy(5.0),
        "theta": lambda mu, tau: dist.Normal(mu, tau).expand([8]),
    }
    return credo.Model(prior, lambda params, x: dist.Normal(params["theta"], x)).given(data["sigma"], data["y"])


def funnel():
    prior = {"v": dist.Normal(0.0, 3.0), "x": lambda v: dist.Normal(0.0, jnp.exp(v / 2)).expand([9])}
    return credo.Model(prior, None).given()


def two_modes(params):
    return jnp.logaddexp(-0.5 * jnp.sum((params["x"] + 5) ** 2), jnp.log(2.0) - 0.5 * jnp.sum((params["x"] - 5) ** 2))


def separated_modes(dim: int):
    return credo.Model.from_log_density(two_modes, {"x": constraints.real_vector}, {"x": (dim,)}).given()


def wide_part():
    """5 % of the mass forty times as wide as the rest: its density there is so low that chains hardly step into it."""
    law = dist.MixtureSameFamily(dist.Categorical(np.array([0.95, 0.05])), dist.Normal(0.0, np.array([1.0, 40.0])))
    return credo.Model({"x": law, "other": dist.Normal(0.0, 3.0)}, None).given()


def student():
    return credo.Model({"x": dist.StudentT(5.0).expand([3])}, None).given()


def arma_errors(params, y):
    """Of an ARMA(1, 1). Outside the unit circle of the moving average the recursion explodes, and traps chains."""

    def step(error, pair):
        before, now = pair
        new = now - params["mu"] - params["phi"] * before - params["theta"] * error
        return new, new

    first = y[0] - params["mu"] * (1 + params["phi"])
    return jnp.concatenate([first[None], jax.lax.scan(step, first, (y[:-1], y[1:]))[1]])


def arma():
    rng = np.random.default_rng(8)
    noise, y = rng.normal(size=201), np.zeros(201)
    for t in range(1, 201):
        y[t] = 0.3 + 0.8 * y[t - 1] + noise[t] + 0.6 * noise[t - 1]
    prior = {
        "mu": dist.Normal(0.0, 10.0),
        "phi": dist.Normal(0.0, 2.0),
        "theta": dist.Normal(0.0, 2.0),
        "sigma": dist.HalfCauchy(2.5),
    }
    model = credo.Model(prior, lambda params, x: dist.Normal(x - arma_errors(params, x), params["sigma"]))
    return model.given(y[1:], y[1:])


def of_page(page):
    return page.credo_target(page.data())


def simplex():
    prior = {"weights": dist.Dirichlet(np.array([2.0, 3.0, 5.0])), "scale": dist.Gamma(4.0, 2.0)}
    return credo.Model(prior, None).given()


def poisson():
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(150), rng.normal(size=(150, 4))])
    y = rng.poisson(np.exp(x @ np.array([0.5, 0.3, -0.4, 0.0, 0.2])))
    model = credo.Model(
        {"w": dist.Normal(0.0, 2.0).expand([5])}, lambda params, x: dist.Poisson(jnp.exp(x @ params["w"]))
    )
    return model.given(x, y)


# what is compared, and with what --------------------------------------------------------------------------------------


def scalars(posterior, names=None) -> np.ndarray:
    """Draws (chain, draw, k) and their squares."""
    draws = posterior.draws
    columns = [draws[name].reshape(*draws[name].shape[:2], -1) for name in names or draws]
    values = np.concatenate(columns, axis=-1)
    return np.concatenate([values, values**2], axis=-1)


def known(*moments: float):
    return lambda: (np.array(moments), np.zeros(len(moments)))


def long_run(target: Callable, monitored: Callable, start=None):
    """Means of 40,000 draws from a form, or from starts, that NUTS samples well, and their errors."""
    place = None if start is None else start
    posterior = credo.fit(
        target(), credo.NUTS(num_warmup=1_000, num_draws=10_000), key=9_999, start=place, progress=False
    )
    values = monitored(posterior)
    return values.mean(axis=(0, 1)), mcse_mean(values)


def schools_of(posterior) -> np.ndarray:
    return scalars(posterior, ("mu", "tau", "theta"))


def entries() -> dict[str, Entry]:
    v = partial(scalars, names=("v",))
    x = partial(scalars, names=("x",))
    near = {"mu": np.float64(0.3), "phi": np.float64(0.8), "theta": np.float64(0.6), "sigma": np.float64(1.0)}
    hard = {
        "centred eight schools": Entry(
            centred_schools, schools_of, partial(long_run, partial(of_page, eight_schools), schools_of), True
        ),
        "funnel, 10 parameters": Entry(funnel, v, known(0.0, 9.0), True),
        "two modes, 1 parameter": Entry(partial(separated_modes, 1), x, known(5 / 3, 26.0), True),
        "two modes, 10 parameters": Entry(partial(separated_modes, 10), x, known(*[5 / 3] * 10, *[26.0] * 10), True),
        "wide part, 2 parameters": Entry(wide_part, x, known(0.0, 80.95), True),
        "ARMA that traps chains": Entry(arma, scalars, partial(long_run, arma, scalars, near), True),
        "stochastic volatility": Entry(
            partial(of_page, stochastic_volatility),
            partial(scalars, names=("mu", "phi", "sigma")),
            partial(long_run, partial(of_page, stochastic_volatility), partial(scalars, names=("mu", "phi", "sigma"))),
            True,
        ),
    }
    easy = {
        "eight schools": partial(of_page, eight_schools),
        "breast cancer": partial(of_page, breast_cancer),
        "radon": partial(of_page, radon),
        "synthetic logistic": partial(of_page, synthetic_logistic),
        "simplex and scale": simplex,
        "Poisson regression": poisson,
    }
    easy = {name: Entry(t, scalars, partial(long_run, t, scalars), False) for name, t in easy.items()}
    return hard | easy | {"Student t, 3 parameters": Entry(student, x, known(*[0.0] * 3, *[5 / 3] * 3), False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--models", nargs="*", help="names, or the beginnings of names")
    parser.add_argument("--method", choices=METHODS, default="NUTS")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| posterior | pass | doubtful | failed | false passes | false alarms |\n|---|---|---|---|---|---|")
    total = Counter()
    for name, entry in entries().items():
        if options.models and not any(name.startswith(wanted) for wanted in options.models):
            continue
        mean, error = entry.truth()
        target, seen = entry.target(), Counter()
        for key in range(options.keys):
            posterior = credo.fit(target, METHODS[options.method](), key=key, progress=False)
            status = posterior.verdict.status
            seen[status] += 1
            values = entry.monitored(posterior)
            z = (values.mean(axis=(0, 1)) - mean) / np.hypot(mcse_mean(values), error)
            seen["false pass"] += status == "pass" and bool(np.nanmax(np.abs(z)) > BOUND)
            seen["false alarm"] += status != "pass" and not entry.is_hard
        total.update({k: n for k, n in seen.items() if k.startswith("false")})
        total["easy fits"] += 0 if entry.is_hard else options.keys
        alarms = "–" if entry.is_hard else seen["false alarm"]
        cells = [seen["pass"], seen["doubtful"], seen["failed"], seen["false pass"], alarms]
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
    print(f"\nFalse passes: {total['false pass']}. False alarms: {total['false alarm']} of {total['easy fits']} fits.")


if __name__ == "__main__":
    main()
