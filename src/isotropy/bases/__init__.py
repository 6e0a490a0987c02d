"""Every equivariant linear map of a representation, by whichever method its structure allows."""
