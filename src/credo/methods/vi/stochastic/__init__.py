"""Variational ascent in high dimensions: minibatches throughout, and no pass over all data at a step."""
