"""Variational families: sets of distributions and the coordinates to move in."""
