"""The class coder: changes of 16-bit floats, gap-coded within classes of the base's exponent."""
