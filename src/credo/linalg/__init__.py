"""Scale operators (square roots of covariances) and matrix-free curvature products."""
