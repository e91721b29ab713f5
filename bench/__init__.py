"""The speed figures: `make bench`. One line a figure, medians; aims are printed beside them."""
