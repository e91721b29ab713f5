"""The writing side of the log: recorder, writer, recovery, retention."""
