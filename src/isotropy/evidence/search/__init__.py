"""The search for amounts by predictions of the linearised network."""
