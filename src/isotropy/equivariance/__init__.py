"""What a trained network has: its equivariance errors, local and finite, layer by layer."""
