"""`python -m pipeline`: see pipeline.cli."""

from pipeline.cli import main

# Guarded because multiprocessing imports the main module again in every process that it spawns.
if __name__ == "__main__":
    main()
