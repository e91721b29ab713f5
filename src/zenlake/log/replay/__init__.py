"""Replay: recorded messages are sent again over a session."""
