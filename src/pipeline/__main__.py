"""`python -m pipeline`: see pipeline.cli."""

import gc
import os
import signal

# Guarded because multiprocessing imports the main module again in every process that it spawns.
if __name__ == "__main__":
    try:
        from pipeline.cli import main
    except KeyboardInterrupt:  # `main` handles later ones
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        main()
    finally:
        gc.freeze()  # Python's last garbage collection would take 0.35 s if torch is imported
