"""Closed forms for memory, FLOPs and communication. They measure nothing and import no torch and no other package.

Symbols: D d_model, F d_ff, L layers, H heads, V vocabulary size, B batch size, S sequence length, T = B·S tokens,
P parameters. Bytes are exact integers; GB is 10^9 bytes and GiB 2^30, which differ by 7%.
"""
