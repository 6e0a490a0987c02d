"""The user's verbs: each takes data and a model through the rooms and hands back one result."""
