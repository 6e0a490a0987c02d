"""What a symmetry is: generators, actions on data, resampling. No networks here."""
