"""Layers that are sums of pathways, more and less equivariant."""
