"""Tasks: the data that a model learns from, one file a subject."""
