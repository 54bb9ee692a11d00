"""Property tests: the real state store against a model of it in plain Python."""
