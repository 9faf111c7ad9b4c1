"""The benchmark's posteriors: one page each, the same model in the words of each library."""

from posteriors import breast_cancer, eight_schools, radon

POSTERIORS = {"eight_schools": eight_schools, "breast_cancer": breast_cancer, "radon": radon}
