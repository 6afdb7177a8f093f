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
