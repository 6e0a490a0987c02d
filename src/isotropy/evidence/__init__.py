"""Choose the amount of symmetry from training data."""
