"""The report of `isotropy measure`."""
