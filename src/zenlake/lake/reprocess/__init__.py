"""Messages of a lake decoded again, by the rules that its lake.toml has now. Without Spark."""
