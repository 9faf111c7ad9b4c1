"""Simulation-based calibration: fits to data of known parameters, and the ranks of those among the draws."""
