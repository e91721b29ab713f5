"""Configuration of a session, and opening one from it."""
