"""Replay: sends recorded messages again over a session."""
