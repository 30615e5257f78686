"""Tools for any model: evaluate, generate, explain, compare words. They assume only `saffu.interface`."""
