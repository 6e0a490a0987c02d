"""How sharp the loss is, layer by layer, differentiable in everything the input depends on."""
