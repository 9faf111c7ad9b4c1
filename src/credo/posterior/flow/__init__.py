"""Normalising flows: layers that bend one density into another."""
