import pytest

from pipeline.report.frame import brief

# As torch 2.11 writes it.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 80.31 MiB is "
    "free. {others}{own}Of the allocated memory 55.47 GiB is allocated by PyTorch, and 1.20 MiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org)"
)
OWN = "Including non-PyTorch memory, this process has 56.20 GiB memory in use. "
OTHERS = "Process 538 has 512.00 MiB memory in use. Process 579 has 70.67 GiB memory in use. "


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (MESSAGE.format(others=OTHERS, own=OWN), "CUDA out of memory; other processes held 71 GiB of the GPU"),
        # They held little, or one of them may be this one.
        (MESSAGE.format(others="", own=OWN), "CUDA out of memory"),
        (MESSAGE.format(others="Process 538 has 512.00 MiB memory in use. ", own=OWN), "CUDA out of memory"),
        (MESSAGE.format(others=OTHERS, own=""), "CUDA out of memory"),
        ("the compiler: CUDA out of memory", "the compiler: CUDA out of memory"),
    ],
)
def test_where_memory_ran_out_it_is_told_what_others_held_of_it(reason, told):
    assert brief(reason) == told
