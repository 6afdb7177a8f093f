"""The training steps that the report advises, timed once more in plain PyTorch, outside the pipeline."""
