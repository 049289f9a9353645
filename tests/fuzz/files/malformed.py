"""Small invalid models: operators of onnxruntime with arbitrary inputs and attributes.

``python -m tests.fuzz.files.malformed --seed 0 --cases 2000`` searches for models that crash graphopt's process,
and ends with status 1 if there are any. Each case runs in a fork.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_INTEGERS = (0, 1, 2, 3, -1, -2, 7, 64, 1 << 40, _LEAST, _MOST)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e30, float("nan"), float("inf"))
_TEXTS = (
    "",
    "same",
    "SAME_UPPER",
    "linear",
    "nearest",
    "->ij",
    "ii->i",
    "bij,bjk->bik",
    "reverse",
    "\u00e9",
    "LSTM",
)
_SHAPES = ((), (0,), (1,), (2,), (3, 2), (2, 0), (1, 3, 4), (1, 2, 4, 4), (1, 1, 1, 1, 1))
_TYPES = (
    np.float32,
    np.float32,
    np.float32,
    np.int64,
    np.int64,
    np.int32,
    np.bool_,
    np.uint8,
    np.int8,
    np.float16,
)
_NAMED = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def malformed(seed: int, case: int) -> onnx.ModelProto:
    """The model of a case: one operator, or two, whose inputs are constants or inputs of the model."""
    rng = random.Random(f"{seed}/{case}")
    schemas = _schemas()
    inputs: list[onnx.ValueInfoProto] = []
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    known: list[str] = []
    domains = {"": rng.choice((9, 13, 17, 18, 21)), "com.microsoft": 1}
    for place in range(rng.choice((1, 1, 2))):
        schema = rng.choice(schemas)
        domains.setdefault(schema.domain, schema.since_version)
        names = []
        types = _types(rng, schema)
        for index in range(rng.choice((len(schema.inputs), len(schema.inputs), rng.randrange(6)))):
            if known and rng.random() < 0.3:
                names.append(rng.choice(known))
            elif rng.random() < 0.1:
                names.append("")
            else:
                name = f"v{len(inputs)}_{len(weights)}"
                fits = index < len(types) and rng.random() < 0.95
                array = _array(rng, types[index] if fits else rng.choice(_TYPES))
                if rng.random() < 0.4:
                    type_ = helper.np_dtype_to_tensor_dtype(array.dtype)
                    dims = [rng.choice((size, size, f"d{axis}")) for axis, size in enumerate(array.shape)]
                    inputs.append(helper.make_tensor_value_info(name, type_, dims))
                else:
                    weights.append(numpy_helper.from_array(array, name))
                names.append(name)
        outputs = [f"o{place}_{index}" for index in range(max(1, rng.randrange(len(schema.outputs) + 1)))]
        node = helper.make_node(schema.name, names, outputs, domain=schema.domain)
        for name in schema.attributes:
            if rng.random() < 0.5:
                node.attribute.append(_attribute(rng, name, schema.attributes[name]))
        nodes.append(node)
        known += outputs
    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "g", inputs, results, weights)
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@lru_cache(maxsize=1)
def _schemas() -> list[Any]:
    """The newest definition of each operator of onnxruntime."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    newest: dict[tuple[str, str], Any] = {}
    for schema in state.get_all_operator_schema():
        if schema.domain in ("", "ai.onnx.ml", "com.microsoft"):
            key = (schema.domain, schema.name)
            if key not in newest or newest[key].since_version < schema.since_version:
                newest[key] = schema
    return [newest[key] for key in sorted(newest)]


def _types(rng: random.Random, schema: Any) -> list[Any]:
    """An element type for each input that the operator declares, the same for those that share a parameter."""
    allowed = {item.type_param_str: sorted(item.allowed_type_strs) for item in schema.type_constraints}
    chosen: dict[str, Any] = {}
    for item in schema.inputs:
        texts = [text for text in allowed.get(item.typeStr, [item.typeStr]) if text in _NAMED]
        if item.typeStr not in chosen:
            chosen[item.typeStr] = _NAMED[rng.choice(texts)] if texts else np.float32
    return [chosen[item.typeStr] for item in schema.inputs]


def _array(rng: random.Random, dtype: Any) -> np.ndarray[Any, Any]:
    shape = rng.choice(_SHAPES)
    count = int(np.prod(shape))
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = [max(limits.min, min(limits.max, rng.choice(_INTEGERS))) for _ in range(count)]
    elif dtype == np.bool_:
        values = [rng.random() < 0.5 for _ in range(count)]
    else:
        values = [rng.choice(_FLOATS) for _ in range(count)]
    with np.errstate(all="ignore"):
        return np.array(values, dtype).reshape(shape)


def _attribute(rng: random.Random, name: str, declared: Any) -> onnx.AttributeProto:
    makers: dict[str, Callable[[], Any]] = {
        "INT": lambda: rng.choice(_INTEGERS),
        "INTS": lambda: [rng.choice(_INTEGERS) for _ in range(rng.randrange(1, 5))],
        "FLOAT": lambda: rng.choice(_FLOATS),
        "FLOATS": lambda: [rng.choice(_FLOATS) for _ in range(rng.randrange(1, 5))],
        "STRING": lambda: rng.choice(_TEXTS),
        "STRINGS": lambda: [rng.choice(_TEXTS) for _ in range(rng.randrange(1, 5))],
        "TENSOR": lambda: numpy_helper.from_array(_array(rng, rng.choice(_TYPES))),
        "GRAPH": lambda: _body(rng),
    }
    kind = str(declared.type).rsplit(".", 1)[-1]
    if kind not in makers or rng.random() < 0.1:
        kind = rng.choice(sorted(makers))
    return helper.make_attribute(name, makers[kind]())


def _body(rng: random.Random) -> onnx.GraphProto:
    """A body with as many inputs and outputs as may be."""
    info = helper.make_tensor_value_info
    kinds = [rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL)) for _ in range(6)]
    count = rng.randrange(4)
    inputs = [info(f"b{index}", kinds[index], rng.choice(([], [2], None))) for index in range(count)]
    array = numpy_helper.from_array(_array(rng, rng.choice(_TYPES)), "k")
    outputs = [f"r{index}" for index in range(rng.randrange(3))]
    nodes = [
        helper.make_node("Identity", [rng.choice(["k", *(item.name for item in inputs)])], [name])
        for name in outputs
    ]
    results = [info(name, kinds[index + 3], None) for index, name in enumerate(outputs)]
    return helper.make_graph(nodes, "b", inputs, results, [array])


_HEAD = '<ir_version: 9, opset_import: ["" : 17]> g'
#: Models that end the process of onnxruntime 1.31: by loading, by running, by a dim of size 0.
KNOWN = {
    "equation": f'{_HEAD} (float x) => (float[N, M] y) {{ y = Einsum<equation = "->ij">(x) }}',
    "division": f"{_HEAD} (int64[2] x) => (int64[2] y) <int64 k = {{-9223372036854775808}}> {{ y = Div(k, x) }}",
    "recurrence": f"{_HEAD} (float[N, 1, 2] x) => (float[A, B, C, D] y) <float[1, 6, 2] w = {{{', '.join('1' * 12)}}}> "
    "{ y, h = GRU<hidden_size = 2>(x, w, w) }",
}

#: Commands that run on each model; {} is its path.
COMMANDS = (
    "optimize {} -o {}.o.onnx --no-verify",
    "optimize {} -o {}.o.onnx -O3",
    "run {}",
    "inspect {}",
    "verify {} {}",
    "compare {} {}",
    "convert {} -o {}.json",
    "profile {} -o {}.profile.json",
    "explain {}",
    "dump {}",
    "optimize {} -o {}.o.onnx --target-opset 21 --no-verify",
    "partition {} -o {}.p.onnx",
)


def ending(commands: Sequence[str], model: bytes, folder: Path, seconds: int = 120) -> str | None:
    """The crash or time-out of the first of ``commands`` that fails on a model; ``None`` if none does."""
    path = folder / "m.onnx"
    path.write_bytes(model)
    for command in commands:
        pid = os.fork()
        if pid == 0:
            _be(command.replace("{}", str(path)).split(), seconds)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in range(7):
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return f"{command}: {name}"
    return None


def _be(arguments: list[str], seconds: int) -> None:
    from graphopt.cli.main import main
    from graphopt.process.fork_safety import claim_process

    signal.alarm(seconds)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    claim_process()
    os._exit(main(arguments))


def search(seed: int, first: int, last: int, commands: Sequence[str] = COMMANDS) -> list[str]:
    """The crashes on the models of these cases."""
    import graphopt.cli.commands.optimize  # noqa: F401 (once, for all forks)

    cases: dict[str, Callable[[], onnx.ModelProto]] = {
        name: partial(onnx.parser.parse_model, text) for name, text in KNOWN.items()
    }
    cases |= {f"case {case}": partial(malformed, seed, case) for case in range(first, last)}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in cases.items():
            died = ending(commands, make().SerializeToString(), Path(folder))
            if died is not None:
                found.append(f"{name}: {died}")
                print(found[-1], flush=True)
    return found


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="commands that begin with it")
    options = parser.parse_args()
    commands = [command for command in COMMANDS if command.startswith(options.only)]
    found = search(options.seed, options.first, options.first + options.cases, commands)
    print(f"{options.cases} models, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(_main())
