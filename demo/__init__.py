"""`python -m demo`: a fleet drives, its lake fills, and both are held against each other."""
