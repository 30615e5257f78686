"""The default solution: a product of counted views with measured exponents, factored by classes. NumPy and C++."""
