"""`python -m pipeline`: see pipeline.cli."""

from pipeline.cli import main

# Guarded, for multiprocessing imports the main module again in a process that it starts from a fresh interpreter.
if __name__ == "__main__":
    main()
