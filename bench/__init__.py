"""The speed figures: `make bench`. One line per figure, medians, with the aim beside it."""
