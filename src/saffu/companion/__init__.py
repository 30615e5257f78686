"""A small transformer, trained next to the counted model and mixed with it by a learned gate. Needs torch."""
