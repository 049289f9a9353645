"""Every inferred fact holds in onnxruntime, for all sizes of the symbols."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.analysis.check_facts import Feeds, check, made_up_feeds, with_constants, with_symbols

# The sizes of b, s, h, w, k in one run each: ones, a zero here and there, primes, large and small.
_SIZES = [(2, 3, 5, 7, 4), (1, 1, 1, 1, 1), (3, 8, 16, 12, 2), (7, 2, 4, 9, 4), (4, 4, 33, 20, 4)]
_ZEROS = [(0, 3, 5, 7, 4), (2, 0, 8, 8, 4), (0, 0, 0, 0, 0), (0, 5, 2, 0, 4)]

_CASES: dict[str, tuple[int, str, str]] = {
    "broadcast": (
        17,
        "float[b,s,4] x, float[s,1] y, float[h] z",
        "t = Add(x, y)  u = Mul(t, x)  c = Less(x, y)  v = Where(c, x, y)  m = Max(x, y, t)",
    ),
    "broadcast of two symbols": (
        17,
        "float[b,4] x, float[s,4] y",
        "t = Add(x, y)  u = Relu(t)  v = Sub(u, t)",
    ),
    "unary": (
        17,
        "float[b,s] x",
        "a = Relu(x) c = Cast<to=7>(x) d = Softmax(x) e = IsNaN(x) f = Clip(x) i = Identity(x) n = Neg(c)",
    ),
    "normalization": (
        17,
        "float[b,4,h,w] x, float[4] g",
        "y = BatchNormalization(x, g, g, g, g)  i = InstanceNormalization(x, g, g)"
        "  l, m, d = LayerNormalization<axis=2>(x, y)  r = LRN<size=3>(x)  q = LpNormalization(x)",
    ),
    "convolution": (
        17,
        "float[b,2,h,w] x, float[4,2,3,3] k3, float[4,2,1,2] k2",
        "a = Conv<pads=[1,1,1,1]>(x, k3)  c = Conv<strides=[2,3],pads=[1,1,1,1]>(x, k3)"
        '  d = Conv<auto_pad="SAME_UPPER",strides=[2,2]>(x, k3)  e = Conv<auto_pad="VALID">(x, k2)'
        "  f = Conv<dilations=[2,2],pads=[2,2,2,2]>(x, k3)",
    ),
    "transposed convolution": (
        17,
        "float[b,4,h,w] x, float[4,2,3,2] k",
        "a = ConvTranspose<strides=[2,3]>(x, k)  c = ConvTranspose<pads=[1,0,0,0]>(x, k)"
        '  d = ConvTranspose<auto_pad="SAME_LOWER",strides=[2,2]>(x, k)'
        "  e = ConvTranspose<strides=[2,2],output_padding=[1,1]>(x, k)",
    ),
    "pooling": (
        17,
        "float[b,4,h,w] x",
        "a = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)  c, ci = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(x)"
        "  d = AveragePool<kernel_shape=[2,3],strides=[2,3],ceil_mode=1>(x)"
        '  e = AveragePool<kernel_shape=[3,3],auto_pad="SAME_UPPER",strides=[2,2]>(x)'
        "  g = GlobalAveragePool(x)  m = GlobalMaxPool(x)  l = LpPool<kernel_shape=[2,1],strides=[3,2]>(x)",
    ),
    "pooling of what may be too small": (
        17,
        "float[b,1,w] x",
        "a = MaxPool<kernel_shape=[3],strides=[2]>(x)  c = MaxPool<kernel_shape=[1],strides=[3],ceil_mode=1>(x)"
        "  d = AveragePool<kernel_shape=[2],strides=[5]>(a)",
    ),
    "matrix products": (
        17,
        "float[b,s,4] x, float[4,k] y, float[k] z, float[b,4,s] t",
        "a = MatMul(x, y)  c = MatMul(a, z)  d = MatMul(x, t)  f = Flatten(x)"
        '  e = Einsum<equation="bsk,bkt->bst">(x, t)  g = Einsum<equation="...ij->...ji">(x)',
    ),
    "gemm": (
        17,
        "float[4,s] x, float[4,k] y",
        "a = Gemm<transA=1>(x, y)  c = Transpose(x)  d = Gemm<transA=1,transB=1>(x, c)",
    ),
    "concatenation": (
        17,
        "float[b,s,4] x, float[b,w,4] y, float[b,s,h] z",
        "a = Concat<axis=1>(x, y)  c = Concat<axis=-1>(x, z)  d = Concat<axis=0>(x, x)",
    ),
    "concatenation where sizes need not agree": (
        17,
        "float[b,s] x, float[h,w] y",
        "a = Concat<axis=0>(x, y)  c = Relu(a)",
    ),
    "split": (
        13,
        "float[b,s,6] x, float[8,s] y",
        "a, c, d = Split<axis=2>(x)  e, f = Split<axis=-2>(y)  n = Constant<value_ints=[1,2,3]>()"
        "  g, h, i = Split<axis=2>(x, n)  u = Shape(y)  j, k = Split(u)",
    ),
    "split with num_outputs": (18, "float[b,s] x", "a, c = Split<axis=1,num_outputs=2>(x)"),
    "slice": (
        17,
        "float[b,s,8] x",
        "o = Constant<value_ints=[1]>()  m = Constant<value_ints=[-1]>()  t = Constant<value_ints=[3]>()"
        "  e = Constant<value_ints=[9223372036854775807]>()  z = Constant<value_ints=[0]>()"
        "  n = Constant<value_ints=[-9223372036854775808]>()  a = Slice(x, o, e, o)  c = Slice(x, z, m, o)"
        "  d = Slice(x, m, n, o, m)  f = Slice(x, z, t, o)  g = Slice(x, m, e, o)  i = Slice(x, t, o, o, m)"
        "  j = Slice(x, z, e, o, t)",
    ),
    "slice of opset 10": (
        10,
        "float[b,s,8] x, float[k] y",
        "o = Constant<value=int64[1] {1}>()  m = Constant<value=int64[1] {-1}>()"
        "  t = Constant<value=int64[1] {3}>()  z = Constant<value=int64[1] {0}>()"
        "  e = Constant<value=int64[1] {9223372036854775807}>()  p = Constant<value=int64[1] {-3}>()"
        "  i = Constant<value=int64[1] {2147483647}>()  n = Shape(y)  a = Slice(x, o, e, o)"
        "  c = Slice(x, z, m, o)  d = Slice(x, z, p, o)  f = Slice(x, p, m, o)  g = Slice(x, o, i, o)"
        "  j = Slice(x, z, t, o)  q = Slice(x, z, n, o)  r = Slice(x, z, e, o, t)  u = Slice(x, m, p, o)",
    ),
    "slice by sizes": (
        17,
        "float[b,s,8] x, float[k] y",
        "n = Shape(y)  z = Constant<value_ints=[0]>()  o = Constant<value_ints=[1]>()"
        "  a = Slice(x, z, n, o)  m = Neg(n)  c = Slice(x, m, n, o)  d = Slice(x, n, n, o)",
    ),
    "pad and tile": (
        17,
        "float[b,s] x, int64[2] r",
        "p = Constant<value_ints=[1,0,2,3]>()  a = Pad(x, p)  c = Tile(x, r)"
        "  q = Constant<value_ints=[0,-1,0,-1]>()  d = Pad(a, q)  t = Constant<value_ints=[2,3]>()  e = Tile(x, t)",
    ),
    "layout": (
        17,
        "float[b,1,s,4] x",
        "o = Constant<value_ints=[1]>()  a = Squeeze(x, o)  c = Unsqueeze(a, o)"
        "  n = Constant<value_ints=[0,-1]>()  d = Unsqueeze(a, n)  t = Transpose<perm=[2,0,3,1]>(x)"
        "  r = Transpose(x)  f = Flatten<axis=2>(x)  g = Flatten<axis=-1>(x)  e = Squeeze(x)",
    ),
    "reshape": (
        17,
        "float[b,s,8] x",
        "p = Constant<value_ints=[0,-1,2]>()  a = Reshape(x, p)  q = Constant<value_ints=[-1,8]>()"
        "  c = Reshape(x, q)  r = Constant<value_ints=[0,0,2,4]>()  d = Reshape(x, r)  u = Shape(x)"
        "  e = Reshape(c, u)  f = Reshape(d, u)",
    ),
    "reshape to sizes in another order": (
        17,
        "float[s,b,8] x, float[b,s,8] y",
        "u = Shape(y)  a = Reshape(x, u)  z = Constant<value_ints=[0]>()  n = Gather(u, z)"
        "  m = Constant<value_ints=[-1]>()  t = Concat<axis=0>(n, m)  c = Reshape(x, t)  d = Reshape(y, t)",
    ),
    "reshape that may copy a size": (
        17,
        "float[h,w,8] x, float[s] y",
        "o = Constant<value_ints=[1]>()  m = Constant<value_ints=[-1]>()  u = Shape(y)"
        "  t = Concat<axis=0>(u, m)  a = Reshape(x, t)  p = Concat<axis=0>(o, u, m)  c = Reshape(x, p)",
    ),
    "reshape of a constant": (
        17,
        "float[s] y",
        "v = Constant<value_ints=[1,2,3,4,5,6]>()  u = Shape(y)  o = Constant<value_ints=[3]>()"
        "  t = Concat<axis=0>(o, u)  m = Constant<value_ints=[2,3]>()  w = Reshape(v, m)  a = Reshape(w, t)",
    ),
    "attention by flat matrices": (
        17,
        "float[b,s,8] x, float[8,8] y",
        "u = Shape(x)  z = Constant<value_ints=[0]>()  o = Constant<value_ints=[1]>()  n = Gather(u, z)"
        "  t = Gather(u, o)  e = Constant<value_ints=[8]>()  m = Constant<value_ints=[-1,8]>()"
        "  p = Concat<axis=0>(n, t, e)  f = Reshape(x, m)  g = MatMul(f, y)  h = Reshape(g, p)  i = Add(h, x)"
        "  q = Constant<value_ints=[2,4]>()  r = Concat<axis=0>(n, t, q)  j = Reshape(i, r)"
        "  k = Transpose<perm=[0,2,1,3]>(j)  l = Transpose<perm=[0,2,3,1]>(j)  a = MatMul(k, l)",
    ),
    "expand": (
        17,
        "float[b,1] x, float[s,1,k] y",
        "u = Shape(y)  a = Expand(x, u)  t = Constant<value_ints=[1,4]>()  c = Expand(x, t)",
    ),
    "positions": (
        17,
        "float[b,s,4] x",
        "v = Constant<value_ints=[0]>()  u = Shape<start=1,end=2>(x)  p = Constant<value_floats=[1.0,2.0,3.0,4.0]>()"
        "  q = Constant<value_ints=[1,1,4]>()  r = Reshape(p, q)  e = Constant<value_ints=[1,5,1]>()"
        "  t = Expand(r, e)  o = Constant<value_ints=[1]>()  c = Slice(t, v, u, o)  a = Add(x, c)",
    ),
    "gather": (
        17,
        "float[b,s,8] x, int64[h,w] i, int64 j",
        "a = Gather<axis=1>(x, i)  c = Gather<axis=-1>(x, j)  u = Shape(x)  d = Gather(u, j)"
        "  n = Constant<value_ints=[-1,0]>()  e = Gather(u, n)",
    ),
    "scatter and gather elements": (
        17,
        "float[b,s] x, int64[h,1] i",
        "a = GatherND(x, i)  c = GatherElements<axis=0>(x, i)  u = GatherElements<axis=0>(x, i)"
        "  d = ScatterElements<axis=0>(x, i, u)",
    ),
    "reductions": (
        17,
        "float[b,s,4] x",
        "a = ReduceMean<axes=[-1]>(x)  c = ReduceMax<axes=[0,2],keepdims=0>(x)  d = ReduceL2(x)"
        "  o = Constant<value_ints=[1]>()  e = ReduceSum<keepdims=0>(x, o)  f = ArgMax<axis=1>(x)"
        "  g = ArgMin<axis=-1,keepdims=0>(x)",
    ),
    "reductions over given axes": (
        18,
        "float[b,s,4] x, int64[1] n",
        "a = ReduceMean(x, n)  c = ReduceMean<keepdims=0>(x, n)  d = ReduceMax<noop_with_empty_axes=1>(x)",
    ),
    "resize": (
        17,
        "float[b,3,h,w] x",
        "v = Constant<value_floats=[1.0,1.0,2.0,1.5]>()  a = Resize(x,,v)  u = Shape<start=2>(x)"
        "  o = Constant<value_ints=[2]>()  m = Mul(u, o)  n = Shape<end=2>(x)  t = Concat<axis=0>(n, m)"
        "  c = Resize(x,,,t)  d = DepthToSpace<blocksize=1>(x)  y = Constant<value_floats=[1.0,1.0,0.5,0.3]>()"
        "  e = Resize(x,,y)",
    ),
    "fourier transforms": (
        20,
        "float[b,s,2] x, float[b,s,1] y, int64 n",
        "a = DFT(x, n)  c = DFT<inverse=1>(x)  d = DFT<onesided=1>(y, n)  e = DFT<onesided=1>(y)"
        "  f = DFT<inverse=1, onesided=1>(x, n)  z = Constant<value_int=1>()  g = DFT(x, n, z)",
    ),
    "short-time fourier transforms": (
        17,
        "float[b,s,1] x, float[s] w",
        "z = Constant<value_int=1>()  a = STFT(x, z, w)  c = STFT<onesided=0>(x, z,, z)"
        "  t = Constant<value_int=2>()  e = STFT(x, t,, z)",
    ),
    "space to depth": (
        17,
        "float[b,4,8,4] x",
        "a = SpaceToDepth<blocksize=2>(x)  c = DepthToSpace<blocksize=2>(x)",
    ),
    "shape arithmetic": (
        17,
        "float[b,s,6] x",
        "u = Shape(x)  z = Constant<value_int=0>()  o = Constant<value_int=1>()  t = Constant<value_int=2>()"
        "  p = Gather(u, z)  q = Gather(u, o)  a = Add(p, q)  c = Mul(p, t)  d = Div(q, t)  e = Mod(q, t)"
        "  f = Sub(p, q)  g = Max(p, q)  h = Min(p, o)  i = ReduceProd(u)  j = Size(x)  k = Neg(p)  l = Abs(f)"
        "  m = Cast<to=6>(a)  n = Equal(p, z)  r = Greater(a, t)  v = Less(p, z)  w = Cast<to=9>(p)"
        "  y = Range(z, q, t)  ax = Constant<value_ints=[0]>()  aa = Unsqueeze(p, ax)  bb = Unsqueeze(d, ax)"
        "  cc = Concat<axis=0>(aa, bb)  dd = ConstantOfShape(cc)  ee = Where(n, o, p)  ff = Expand(aa, cc)",
    ),
    "contents of two dims": (
        17,
        "float[b,s] x",
        "u = Shape(x)  p = Constant<value_ints=[1,2,3,4]>()  t = Concat<axis=0>(u, p)  m = Constant<value_ints=[-1,2]>()"
        "  r = Reshape(t, m)  z = Constant<value_ints=[-1]>()  n = Constant<value_ints=[-9223372036854775808]>()"
        "  ax = Constant<value_ints=[0]>()  f = Slice(r, z, n, ax, z)  g = Transpose(f)  h = Reshape(g, z)"
        "  i, j, k = Split(r)  l = Gather<axis=1>(r, ax)  q = Tile(i, m2)  m2 = Constant<value_ints=[2,1]>()",
    ),
    "fills that move": (
        18,
        "float[b,s,4] x",
        "d = Shape(x)  i = Constant<value=int64[1] {0}>()  u = Constant<value=int64[1] {2}>()  o = Constant<value=float {1}>()  z = ConstantOfShape(d)  e = Expand(o, d)"
        "  t = Transpose(e)  p, q = Split<axis=2,num_outputs=2>(e)  c = Concat<axis=1>(e, e)"
        "  v = Concat<axis=1>(e, z)  m = ConstantOfShape<value=bool[1] {1}>(d)  w = Where(m, z, x)"
        "  k = Constant<value=int64[6] {0,0,1,0,0,1}>()  a = Pad(z, k)  f = Pad(e, k)  g = Trilu(z)"
        "  r = Constant<value=int64[3] {2,1,1}>()  j = Tile(e, r)  l = Slice(e, i, u)  n = Not(m)",
    ),
    "fills that are computed": (
        18,
        "float[b,s] x, int64[b] i, bool[b] y",
        "d = Shape(x)  o = Constant<value=float[1] {3}>()  e = Expand(o, d)  z = ConstantOfShape(d)  n = Neg(z)"
        "  a = Add(e, e)  c = Div(e, z)  f = Div(z, z)  g = Mul(z, x)  h = Min(n, z)  j = Max(e, n)"
        "  k = Cast<to=7>(e)  l = Sub(k, k)  m = Mul(l, i)  p = Cast<to=2>(c)  q = Cast<to=9>(l)  r = And(y, q)"
        "  s = Equal(e, e)  t = Less(z, n)  u = Add(n, n)  v = Add(n, z)  w = Sqrt(e)  aa = Abs(n)"
        "  bb = Where(s, n, z)  cc = Or(y, s)  dd = Xor(q, s)  ee = Cast<to=11>(a)  ff = Reciprocal(z)"
        "  gg = Trilu(e)  hh = Mul(z, c)",
    ),
    "creation": (
        17,
        "float[b,s] x, int64[2] n",
        "u = Shape(x)  a = ConstantOfShape(u)  c = ConstantOfShape(n)  d = EyeLike(x)  e = RandomNormalLike(x)"
        "  f = NonZero(x)  g = Bernoulli(x)",
    ),
    "top k and one hot": (
        17,
        "float[b,8] x, int64[s] i, int64[1] n",
        "k = Constant<value_ints=[2]>()  a, c = TopK(x, k)  d, e = TopK(x, n)  v = Constant<value_floats=[0.0,1.0]>()"
        "  t = Constant<value_ints=[5]>()  f = OneHot(i, t, v)  g = OneHot<axis=0>(i, n, v)",
    ),
    "ranges": (
        17,
        "float[s] x, int64 n",
        "u = Shape(x)  z = Constant<value_int=0>()  t = Constant<value_int=3>()  ax = Constant<value_ints=[0]>()"
        "  q = Squeeze(u, ax)  a = Range(z, q, t)  c = Range(t, n, z1)  z1 = Constant<value_int=1>()"
        "  m = Constant<value_int=-1>()  d = Range(q, z, m)  e = Range(z, t, z1)",
    ),
    "compression": (17, "float[b,s] x, bool[h] c", "a = Compress(x, c)  d = Compress<axis=1>(x, c)"),
    "quantization": (
        17,
        "float[b,s] x",
        "v = Constant<value_float=0.1>()  a = QuantizeLinear(x, v)  c = DequantizeLinear(a, v)"
        "  d, e, f = DynamicQuantizeLinear(x)  g = QuantizeLinear(x, v, f)  h = Transpose(d)  i = MatMulInteger(d, h)",
    ),
    "recurrent": (
        14,
        "float[s,b,4] x, float[1,12,4] w3, float[1,12,3] r3, float[1,9,4] g3, float[1,9,3] q3",
        "a, c, d = LSTM<hidden_size=3>(x, w3, r3)  e, f = GRU<hidden_size=3>(x, g3, q3)",
    ),
    "sequences": (
        17,
        "float[b,s] x, float[h,s] y",
        "q = SequenceConstruct(x, y)  z = Constant<value_int=0>()  o = Constant<value_int=1>()"
        "  a = SequenceAt(q, z)  c = SequenceAt(q, o)  d = ConcatFromSequence<axis=0>(q)  e = SequenceInsert(q, x)"
        "  l = SequenceLength(e)  v = SequenceEmpty()  i = SequenceInsert(v, y)  j = SequenceAt(i, z)"
        "  k = SplitToSequence<axis=1>(x)  m = SequenceAt(k, z)",
    ),
    "branches": (
        17,
        "float[b,4] x, float[s,4] y, bool c",
        "r = If(c) <then_branch = t () => (float[u1,u2] m) { n = Add(x, x)  m = Concat<axis=0>(n, x) },"
        " else_branch = e () => (float[u3,u4] o) { o = Relu(y) }>"
        "  p = If(c) <then_branch = t2 () => (float[u1,u2] m2) { m2 = Neg(x) },"
        " else_branch = e2 () => (float[u3,u4] o2) { o2 = Relu(x) }>",
    ),
    "a branch that is known to be taken": (
        17,
        "float[b,s] x",
        "u = Size(x)  m = Constant<value_int=-1>()  c = Greater(u, m)"
        "  r = If(c) <then_branch = t () => (float[u1] n) { s1 = Constant<value_ints=[-1]>()  n = Reshape(x, s1) },"
        " else_branch = e () => (float[u3] o) { z = Constant<value_ints=[-1]>()  o = Reshape(x, z) }>",
    ),
    "a loop that keeps its shapes": (
        17,
        "float[b,4] x, int64 n, bool c",
        "y, z = Loop(n, c, x) <body = g (int64 i, bool d, float[b1,k1] v) => (bool f, float[b2,k2] w, float[b3,k3] t) {"
        " f = Identity(d)  w = Add(v, x)  t = Neg(w) }>",
    ),
    "a loop that grows": (
        17,
        "float[b,4] x, float[s,4] q, int64 n, bool c",
        "y, z = Loop(n, c, x) <body = g (int64 i, bool d, float[b1,k1] v) => (bool f, float[b2,k2] w, int64[k3] t) {"
        " f = Identity(d)  w = Concat<axis=0>(v, q)  t = Shape(v)  r = Mul(w, w)  a = ReduceSum(r) }>",
    ),
    "a loop that always runs": (
        17,
        "float[b,4] x",
        "n = Constant<value_int=3>()  z = Constant<value_int=1>()  c = Greater(n, z)"
        "  y, t = Loop(n, c, x) <body = g (int64 i, bool d, float[b1,k1] v) => (bool f, float[b2,k2] w, float[b3,k3] t1) {"
        " f = Identity(d)  w = Relu(v)  t1 = Neg(v) }>",
    ),
    "nested loops": (
        17,
        "float[b,4] x, int64 n, bool c",
        "y = Loop(n, c, x) <body = g (int64 i, bool d, float[b1,k1] v) => (bool f, float[b2,k2] w) {"
        " f = Identity(d)  u = Loop(n, d, v) <body = h (int64 j, bool e, float[b4,k4] p) => (bool o, float[b5,k5] q) {"
        " o = Identity(e)  q = Concat<axis=0>(p, x) }>"
        "  w = If(d) <then_branch = t () => (float[u1,u2] m) { m = Relu(u) },"
        " else_branch = l () => (float[u3,u4] a) { a = Identity(v) }> }>",
    ),
    "scan": (
        17,
        "float[b,3] x, float[s,h,4] q",
        "y, z = Scan<num_scan_inputs=1, body = g (float[b1,k1] v, float[b2,k2] e) => (float[b3,k3] w, float[b4,k4] t) {"
        " w = Tanh(v)  t = Neg(e) }>(x, q)"
        "  m, n = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1],"
        " body = h (float[b5,k5] v1, float[b6,k6] e1) => (float[b7,k7] w1, float[b8,k8] t1) {"
        " w1 = Tanh(v1)  t1 = Neg(e1) }>(x, q)",
    ),
}


def _model(opset: int, inputs: str, body: str) -> onnx.ModelProto:
    """A model of the case; its nodes may be written in any order, and all values are checked."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float out) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    del proto.graph.output[:]
    last = proto.graph.node[-1].output[0]
    proto.graph.output.append(onnx.ValueInfoProto(name=last))
    return proto


def _runs(proto: onnx.ModelProto, name: str) -> list[Feeds]:
    sizes = _SIZES if name in _NO_ZEROS else _SIZES + _ZEROS
    return [made_up_feeds(proto, dict(zip("bshwk", run, strict=True))) for run in sizes]


# onnxruntime divides by these sizes, or allocates their product
_NO_ZEROS = frozenset({"recurrent", "scan", "fourier transforms", "short-time fourier transforms"})


@pytest.mark.parametrize("name", _CASES)
def test_facts_hold(name: str) -> None:
    proto = _model(*_CASES[name])
    feeds = _runs(proto, name)
    report = check(proto, feeds)
    assert not report.wrong
    assert not report.failures
    assert len(report.not_run) < len(feeds), report.not_run
    assert report.checked > 0


@pytest.mark.parametrize("name", _CASES)
def test_facts_hold_with_constant_inputs(name: str) -> None:
    """With the contents of integer inputs known, and every other dim a symbol of its own."""
    proto, feeds = with_constants(_model(*_CASES[name]), made_up_feeds(_model(*_CASES[name]), {}, default=4))
    report = check(with_symbols(proto), [feeds])
    assert not report.wrong
    assert not report.failures


# Cases that onnxruntime does not run: too new, or invalid on purpose.
_LATEST_OPSET, _LATEST_IR = 26, 13


def _node_tests() -> Iterator[tuple[str, onnx.ModelProto, list[Feeds]]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        proto = case.model
        if proto is None:
            continue
        proto.ir_version = min(proto.ir_version, _LATEST_IR)
        for imported in proto.opset_import:
            if imported.domain in ("", "ai.onnx"):
                imported.version = min(imported.version, _LATEST_OPSET)
        sets: list[Feeds] = []
        for inputs, _ in case.data_sets or []:
            named = zip(proto.graph.input, inputs, strict=False)
            sets.append({value.name: data for value, data in named if isinstance(data, np.ndarray)})
        yield case.name, proto, sets


@pytest.mark.parametrize("variant", ["symbolic", "constants", "static"])
def test_facts_hold_on_the_node_tests_of_onnx(variant: str) -> None:
    wrong: dict[str, list[str]] = {}
    ran = checked = 0
    for name, proto, feeds in _node_tests():
        if variant == "constants" and feeds:
            proto, first = with_constants(proto, feeds[0])
            feeds = [first]
        report = check(proto if variant == "static" else with_symbols(proto), feeds)
        ran += len(feeds) > len(report.not_run)
        checked += report.checked
        if report.wrong or report.failures:
            wrong[name] = report.wrong + report.failures
    assert not wrong
    assert ran > 1200
    assert checked > 20_000
