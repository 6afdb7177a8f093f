"""`python -m pipeline`: see pipeline.cli."""

from pipeline.cli import main

main()
