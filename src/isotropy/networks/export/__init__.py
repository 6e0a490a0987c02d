"""What was learned, taken to other libraries."""
