"""The names that people read for what the rows name in code."""

# The ways to put the feed-forward blocks on a mesh, as `mesh_rows` calls them.
MESH_CASES = {
    "given": "as given",
    "overlap": "transfers of the axes overlap",
    "fp8_weights": "weights gathered in 8 bits",
    "split": "same devices, split otherwise",
    "best_split": "best split, not whole",
    "best_split_overlap": "best split, axes overlap",
}

# By strategy, and whether transfers of weights and of activations overlap.
PARALLEL_CASES = {
    ("data_parallel", False): "data parallel",
    ("fsdp", False): "FSDP",
    ("tensor", False): "tensor parallel",
    ("fsdp_tensor", True): "FSDP and tensor parallel, overlapping",
    ("fsdp_tensor", False): "FSDP and tensor parallel, in turn",
}
