def build(rows, beside):
    raise NotImplementedError
