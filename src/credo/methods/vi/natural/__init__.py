"""Natural-gradient variational inference."""
