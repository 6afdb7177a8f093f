"""Lines of a table of cells, as `cell_table` writes them."""


def line(**changes):
    return {
        "stage": "timing",
        "cell": "size=xl",
        "status": "ok",
        "reason": "",
        "started_at": "2026-01-01T10:00:00Z",
        "start_up_s": 3.0,
        "set_up_s": 1.0,
        "measuring_s": 6.0,
        "machine": "NVIDIA H200",
        "cpu": "Xeon, 64 cores",
        "python": "3.12.3",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "cuda": "13.0",
        "driver": "580",
        "digest": "abc",
        "commit": "1234567",
        "command": "python",
    } | changes
