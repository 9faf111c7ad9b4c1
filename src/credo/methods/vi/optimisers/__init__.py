"""Optimisers: from noisy natural gradients to steps."""
