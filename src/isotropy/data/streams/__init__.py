"""Data that are read example by example while they are used, and never held as one tensor."""
