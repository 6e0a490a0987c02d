"""Labelled data: read from files or memory, turned into test problems, or shipped along."""
