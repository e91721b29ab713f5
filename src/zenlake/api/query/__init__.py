"""Queries: gets, queriers, queryables."""
