"""Memory, communication and batch sizes in closed form: no measuring, and no torch.

Symbols: D d_model, F d_ff, L blocks or layers, H heads, V vocabulary, B batch (sequences), S sequence length, T = B·S
tokens. Bytes are exact integers; GB is 10^9 bytes and GiB 2^30, which differ by 7%.
"""
