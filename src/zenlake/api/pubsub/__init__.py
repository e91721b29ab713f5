"""Publishers, subscribers, and Arrow batches in both directions."""
