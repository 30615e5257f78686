"""Backpropagation for the paper's network."""
