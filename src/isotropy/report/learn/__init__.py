"""The report of `isotropy learn`."""
