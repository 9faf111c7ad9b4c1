"""The benchmark's posteriors: one page each, the same model in the words of each library."""

from posteriors import (
    breast_cancer,
    eight_schools,
    radon,
    rotated_gaussian,
    stochastic_volatility,
    synthetic_logistic,
)

POSTERIORS = {
    "eight_schools": eight_schools,
    "breast_cancer": breast_cancer,
    "synthetic_logistic": synthetic_logistic,
    "radon": radon,
    "rotated_gaussian": rotated_gaussian,
    "stochastic_volatility": stochastic_volatility,
}
