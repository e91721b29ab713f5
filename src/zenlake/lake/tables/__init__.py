"""Delta tables of a lake without Spark: schemas, commits, compaction, retention."""
