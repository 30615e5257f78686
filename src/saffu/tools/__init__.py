"""What one does with any model: evaluate, generate, explain, compare words. Only `saffu.interface` is assumed."""
