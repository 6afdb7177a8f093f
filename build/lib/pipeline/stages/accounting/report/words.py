"""The names that people read for what the rows name in code."""

# The ways to put the feed-forward blocks on a mesh, as `mesh_rows` calls them.
MESH_CASES = {
    "given": "as given",
    "overlap": "transfers of both axes overlapping",
    "fp8_weights": "weights gathered in 8 bits",
    "split": "the best whole split of the devices",
    "best_split": "the best split, whole or not",
    "best_split_overlap": "the best split and overlapping transfers",
}

# By strategy, and whether transfers of weights and of activations overlap.
PARALLEL_CASES = {
    ("data_parallel", False): "data parallel",
    ("fsdp", False): "FSDP",
    ("tensor", False): "tensor parallel",
    ("fsdp_tensor", True): "FSDP and tensor parallel, overlapping",
    ("fsdp_tensor", False): "FSDP and tensor parallel, in turn",
}
