"""How sharp the loss is, layer by layer, differentiable in everything the input depends on."""

# Layers of torch have their rules wherever curvature is used.
from isotropy.curvature import attention

__all__ = ["attention"]
