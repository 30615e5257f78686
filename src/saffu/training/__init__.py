"""What every training run needs: clock, checks, checkpoints, signals, CUDA graphs."""
