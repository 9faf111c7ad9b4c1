"""Credo: a posterior by the approximation you name, and how far it can be trusted."""
