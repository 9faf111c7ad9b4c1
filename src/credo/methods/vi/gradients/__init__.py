"""Gradient estimators: log weights whose derivative has the right mean."""
