"""Series of Finzi (2023): bases, equivariant networks, soft symmetry, robots, certificates."""
