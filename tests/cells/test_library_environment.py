"""What of an environment a record holds."""

from pipeline.cells.library_environment import library_environment


def test_what_changes_figures_is_there_and_what_cells_set_or_only_names_a_place_is_not():
    read = {"OMP_PROC_BIND": "true", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "NCCL_ALGO": "Ring"}
    others = {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "TRITON_CACHE_DIR": "/home/me/cache",
        "HOME": "/home/me",
    }
    assert library_environment(read | others) == read


def test_what_is_preloaded_counts_without_telling_whose_machine_it_is():
    first, second = (
        library_environment({"LD_PRELOAD": f"/home/me/{name}.so"})["LD_PRELOAD"] for name in ("tcmalloc", "jemalloc")
    )
    assert first != second
    assert "me" not in first
