"""Choose tiles and thresholds of the Triton kernels, by what the compiler makes of them and how fast they are."""
