"""Hand-written kernels, a model that calls them, and programs that run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c import build_library
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.util.disk_store import Store


def _lacks_compiler() -> str:
    try:
        find_compiler()
    except NoCompiler as error:
        return str(error)
    return ""


#: Marks tests that need a C compiler.
compiled = pytest.mark.skipif(bool(_lacks_compiler()), reason=_lacks_compiler() or "there is one")

#: A kernel of one input and one output of floats, in four parts.
_KERNEL = """
typedef struct {{ const float *x; float *y; size_t n; }} work_{name};
static void part_{name}(void *data, size_t index) {{
  work_{name} *work = data;
  for (size_t i = index; i < work->n; i += 4) {{
    const float x = work->x[i];
    work->y[i] = {expression};
  }}
}}
static int run_{name}(go_call *call) {{
  int64_t dims[{rank} + 1];
  work_{name} work = {{go_input(call, 0, {rank}, dims), NULL, 1}};
  if (work.x == NULL) return 1;
  work.y = go_output(call, 0, {rank}, dims);
  if (work.y == NULL) return 1;
  for (int axis = 0; axis < {rank}; axis++) work.n *= (size_t)dims[axis];
  {extra}
  go_parallel(call, part_{name}, &work, 4);
  return 0;
}}
"""
_TABLE = """
static const int types[] = {{1}}, pairs[] = {{0, 0}};
extern const go_kernel GO_NAME(go_kernels)[];
extern const int GO_NAME(go_kernel_count);
const go_kernel GO_NAME(go_kernels)[] = {{ {rows} }};
const int GO_NAME(go_kernel_count) = {count};
"""


def unit(kernels: Mapping[str, str], *, rank: int = 1, extra: str = "") -> str:
    """A unit with kernels of one input of floats; name -> expression of ``x`` in C."""
    bodies = [
        _KERNEL.format(name=name, expression=text, rank=rank, extra=extra) for name, text in kernels.items()
    ]
    rows = ", ".join(f'{{"{name}", 1, 1, types, types, 1, pairs, run_{name}}}' for name in kernels)
    return '#include "runtime.h"\n' + "".join(bodies) + _TABLE.format(rows=rows, count=len(kernels))


def library(tmp_path: Path, *units: Mapping[str, str], rank: int = 1, extra: str = "") -> str:
    """The path of a library with such units."""
    texts = [unit(kernels, rank=rank, extra=extra) for kernels in units]
    store = Store(tmp_path / "store")
    return str(build_library.build(texts, sum(map(len, units)), store))


#: Computes 2x + 1, with and without its kernel, in the main graph, an If, a Loop, and a function.
MODEL = """
<ir_version: 8, opset_import: ["": 17, "graphopt.native": 1, "local": 1]>
agraph ({type}[{dims}] x, bool c) => ({type}[{dims}] main, {type}[{dims}] branch, {type}[{dims}] loop, {type}[{dims}] nested)
<{type}[{dims}] n, {type}[{dims}] m>
{{
  n = Neg(x)
  m = graphopt.native.affine_0123456789ab(n)
  main = Neg(m)
  branch = If(c) <then_branch = t () => ({type}[{dims}] p) {{ p = graphopt.native.affine_0123456789ab(x) }},
                  else_branch = e () => ({type}[{dims}] q) {{ q = Abs(x) }}>
  two = Constant<value = int64 {{2}}>()
  loop = Loop(two, c, x) <body = b (int64 i, bool go, {type}[{dims}] v) => (bool on, {type}[{dims}] w) {{
    on = Identity(go)
    w = graphopt.native.affine_0123456789ab(v) }}>
  nested = local.outer(x)
}}
<opset_import: ["": 17], domain: "graphopt.native">
affine_0123456789ab (x) => (y) {{
  one = Constant<value = float {{1.0}}>()
  d = Add(x, x)
  y = Add(d, one)
}}
<opset_import: ["": 17, "graphopt.native": 1], domain: "local">
outer (x) => (y) {{
  a = Abs(x)
  y = graphopt.native.affine_0123456789ab(a)
}}
"""
NAME = "affine_0123456789ab"
RIGHT = "x + x + 1.0f"
#: The kernel writes the level for which it was compiled.
MARKED = "x + x + 1.0f + 1000 * GO_LEVEL + 1000"


def model(dims: str = "N", type: str = "float") -> onnx.ModelProto:
    """:data:`MODEL`."""
    return onnx.parser.parse_model(MODEL.format(dims=dims, type=type))


def affine(x: np.ndarray, more: float = 0.0) -> dict[str, np.ndarray]:
    """The expected outputs; ``more`` is added by the kernel."""

    def f(v: np.ndarray) -> np.ndarray:
        return v + v + 1 + np.float32(more)

    return {"main": -f(-x), "branch": f(x), "loop": f(f(x)), "nested": f(np.abs(x))}


#: Runs in a separate process with onnxruntime and numpy only.
_SCRIPT = """
import json, sys
import numpy as np
import onnxruntime
model, library, level, feeds, target = json.loads(sys.argv[1])
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
if library: options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
np.savez(target, **dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(np.load(feeds))))))
print(onnxruntime.__version__)
"""


def fresh(
    model: Path,
    feeds: Mapping[str, np.ndarray],
    library: str | None,
    *,
    optimized: bool = True,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, np.ndarray]]:
    """Run in a fresh process of plain onnxruntime: its version, and the outputs."""
    inputs, outputs = model.with_suffix(".in.npz"), model.with_suffix(".out.npz")
    np.savez(inputs, **feeds)
    arguments = json.dumps([str(model), library, 99 if optimized else 0, str(inputs), str(outputs)])
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT, arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environ,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout.strip(), dict(np.load(outputs))


def make_host(folder: Path, more: Sequence[str] = ()) -> Path:
    """The program ``host.c``."""
    target = folder / "host"
    here, headers = Path(__file__).parent, Path(build_library.__file__).parent / "runtime"
    flags = ["-std=gnu11", "-O1", f"-I{headers}", *more, str(here / "host.c"), "-o", str(target), "-ldl"]
    find_compiler().run(flags, folder, 60)
    return target


def in_host(
    host: Path,
    runtime: Path,
    model: Path,
    feeds: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.dtype],
    library: str | None,
    *,
    optimized: bool = True,
    environ: Mapping[str, str] | None = None,
) -> dict[str, np.ndarray]:
    """Run in the C program: flat outputs."""
    folder = model.parent
    words = [str(runtime), str(model), library or "-", "99" if optimized else "0"]
    for name, array in feeds.items():
        (folder / f"{name}.raw").write_bytes(array.tobytes())
        type_ = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        words.append(f"{name}:{type_}:{'x'.join(map(str, array.shape)) or 's'}:{folder / name}.raw")
    words.append("--")
    words += [f"{name}:{folder / name}.out" for name in outputs]
    found = subprocess.run(
        [str(host), *words], check=False, capture_output=True, text=True, timeout=120, env=environ
    )
    assert found.returncode == 0, found.stderr
    return {
        name: np.frombuffer((folder / f"{name}.out").read_bytes(), dtype) for name, dtype in outputs.items()
    }


def shared_runtime() -> Path | None:
    """The C library of the installed onnxruntime."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return next(iter(sorted(folder.glob("libonnxruntime.so.*"))), None)
