"""Experiments: the ablation, its report, learning curves, and the experiments of the paper."""
