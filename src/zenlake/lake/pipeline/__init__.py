"""Spark flows that fill the tables. The only part of the lake that imports pyspark."""
