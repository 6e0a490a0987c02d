"""Networks that come with the package, and how they are named."""
