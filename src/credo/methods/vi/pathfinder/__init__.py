"""Pathfinder: Gaussians along the path of a quasi-Newton optimiser, of which the best by ELBO is kept."""
