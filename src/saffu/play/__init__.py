"""A local page for one user: count a text, get suggestions while typing, see why, forget, and compare."""
