"""Liveliness, matching, scouting, and what a session knows of its network."""
