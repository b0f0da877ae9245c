"""Runs: training with exact resume, checkpoints, run folders, progress."""
