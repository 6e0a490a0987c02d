"""Tables and figures of the papers, as data: settings, seeds, published numbers, and a runner."""
