"""Networks that have, nearly have, or can acquire a symmetry."""
