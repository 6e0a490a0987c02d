"""What the verbs share: a run from its beginning to its folder, its result, and back from there."""
