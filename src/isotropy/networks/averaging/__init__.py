"""Networks averaged over transformed copies, and the laws that copies are drawn from."""
