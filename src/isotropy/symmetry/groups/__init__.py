"""Matrix groups and their representations."""
