"""The default solution: a product of counted views with fitted exponents, factored by classes. NumPy and C++."""
