"""Actions: motions of data along generators, and finite symmetries."""
