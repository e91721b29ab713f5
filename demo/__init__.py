"""`python -m demo`: a fleet drives, its lake fills, and the tables are checked by its ledger."""
