"""What answers queries from kept values: the tables of a lake, and the tail of its log.

Knows Delta tables, Arrow and the log. Does not know Spark.
"""
