"""Run directories: what a training leaves behind."""
