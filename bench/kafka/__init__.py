"""The work of a lake done by Kafka, Spark's Kafka source and Delta: measured beside zenlake's."""
