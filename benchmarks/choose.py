"""The figures of docs/how-to-choose.md: every method on three models, against a long NUTS run.

python benchmarks/choose.py    # about two minutes on two quiet cores; prints Markdown
"""

import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer, load_diabetes

import credo


def schools_likelihood(params, sd):
    return dist.Normal(params["mu"] + params["tau"] * params["z"], sd)


def logistic(params, x):
    return dist.BernoulliLogits(x @ params["w"])


def linear(params, x):
    return dist.Normal(x @ params["w"], params["noise_sd"])


def standardised(x):
    return np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)])


def eight_schools():
    prior = {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "z": dist.Normal(0.0, 1.0).expand([8])}
    sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    return credo.Model(prior, schools_likelihood).given(sd, np.array([28.0, 8, -3, 7, -1, 1, 18, 12]))


def breast_cancer():
    x, y = load_breast_cancer(return_X_y=True)
    return credo.Model({"w": dist.Normal(0.0, 1.0).expand([31])}, logistic).given(standardised(x), y)


def diabetes():
    x, y = load_diabetes(return_X_y=True)
    prior = {"w": dist.Normal(0.0, 100.0).expand([11]), "noise_sd": dist.HalfNormal(100.0)}
    return credo.Model(prior, linear).given(standardised(x), y)


MODELS = {"eight schools": eight_schools, "breast cancer": breast_cancer, "diabetes": diabetes}
METHODS = {
    "Laplace": lambda fitted: credo.Laplace(),
    "ADVI, mean-field": lambda fitted: credo.ADVI(),
    "ADVI, full-rank": lambda fitted: credo.ADVI(family=credo.FullRank()),
    "Importance of the last": lambda fitted: credo.Importance(proposal=fitted, num_draws=10_000),
    "NUTS": lambda fitted: credo.NUTS(),
}


def main() -> None:
    print("| model | method | verdict | worst mean off by | sd ratio | k̂ | gradients | first fit, s | second, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model, make in MODELS.items():
        target = make()
        reference = credo.fit(target, credo.NUTS(num_warmup=1_000, num_draws=10_000), key=99, progress=False)
        fitted = None
        for name, method in METHODS.items():
            first = credo.fit(target, method(fitted), key=1, progress=False)
            second = credo.fit(target, method(fitted), key=2, progress=False)
            fitted = first
            row = credo.compare({"r": reference, "m": first}, reference="r", show=False).loc["m"]
            k = "–" if np.isnan(row["pareto_k"]) else f"{row['pareto_k']:.2f}"
            gradients = first.info.get("num_gradients")
            seconds = [fit.info["seconds"]["total"] for fit in (first, second)]
            moments = f"{row['mean_distance']:.2f} sd | {row['sd_ratio']:.2f} | {k}"
            cost = f"{gradients:,} | {seconds[0]:.1f} | {seconds[1]:.2f}"
            print(f"| {model} | {name} | {first.verdict.status} | {moments} | {cost} |")


if __name__ == "__main__":
    main()
