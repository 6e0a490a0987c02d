"""The report of `isotropy relax`."""
