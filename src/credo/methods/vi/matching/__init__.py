"""Batch and match: Gaussian q fitted by matching its scores to the target's, in closed form."""
