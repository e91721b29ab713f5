"""One module per command of `zenlake`."""
