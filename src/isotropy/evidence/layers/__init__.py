"""Learning which pathways of a layer are needed."""
