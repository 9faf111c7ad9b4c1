"""Deterministic variational inference: fixed draws, and Newton's method."""
