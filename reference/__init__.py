"""The models in plain Python and NumPy: slow, short, and the definition that tests compare the package with."""
