"""Models with attention, for tests of commands."""

#: Attention over past and new keys with a mask whose length is an independent dim.
MASKED_ATTENTION = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 2, seq, 8] q, float[batch, 2, seq, 8] k, float[batch, 2, past, 8] pk, float[batch, 1, seq, total] mask)
    => (float[batch, 2, seq, 8] y)
{
    keys = Concat<axis = 2>(pk, k)
    turned = Transpose<perm = [0, 1, 3, 2]>(keys)
    products = MatMul(q, turned)
    scores = Add(products, mask)
    weights = Softmax<axis = -1>(scores)
    y = MatMul(weights, keys)
}"""
