"""How commands show samples, messages, captures and logs."""
