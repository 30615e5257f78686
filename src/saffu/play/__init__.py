"""A local page for one person: count a text, type next to its model, see why, forget, and compare."""
