"""Networks and layers that commute with a group."""
