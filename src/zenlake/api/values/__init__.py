"""Value types of the session API: keys, encodings, timestamps, samples, replies."""
