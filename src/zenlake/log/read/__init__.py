"""The reading side of the log: index, planning, record batches."""
