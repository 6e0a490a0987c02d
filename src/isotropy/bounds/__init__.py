"""What a network's description is worth: certified bounds on the error of new data."""
