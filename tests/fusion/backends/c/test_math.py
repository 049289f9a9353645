"""Functions of vectors against double precision: at most 4 units in the last place, over all floats."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphopt.fusion.backends.c.preamble import Lanes, preamble
from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import (
    Access,
    Axis,
    Element,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)
from tests.fusion.backends.c.harness import Unit, build, compiler, levels

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

ONE_ARGUMENT = ["exp", "log", "tanh", "sigmoid", "erf", "sin", "cos"]
EXACT: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint,
}  # fmt: skip
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3e38, -3e38,
     16777217, 16777215, 8388609, -8388609, 1.0000001, 0.9999999, -0.9999999, 1e10, 88.7, -104, 2.5, 1.5],
    np.float32,
)  # fmt: skip


class Functions:
    """The functions, compiled for a level, with as many lanes as registers hold or half as many."""

    def __init__(self, folder: Path, level: int, lanes: Lanes) -> None:
        parts = [preamble([lanes]), "const go_kernel GO_NAME(go_kernels)[1];\n"]
        for name in [*ONE_ARGUMENT, *EXACT, "pow", "fmod"]:
            two = name in ("pow", "fmod")
            end = lanes.value
            args = [f"load_f32_{end}(x + i)", f"load_f32_{end}(y + i)"][: 1 + two]
            call = f"{name}_{end}({', '.join(args)})"
            parts.append(
                f"void all_{name}(const float *x, const float *y, float *z, long n) {{\n    (void)y;\n"
                f"    for (long i = 0; i < n; i += LANES_{end}) store_f32_{end}(z + i, {call});\n}}\n"
            )
        text = folder / "math.c"
        text.write_text("\n".join(parts))
        build(text, folder / "math.so", level)
        self.library = ctypes.CDLL(str(folder / "math.so"))

    def run(self, name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        n = -(-len(x) // 16) * 16
        args = [np.resize(array, n) for array in (x, x if y is None else y)] + [np.empty(n, np.float32)]
        getattr(self.library, f"all_{name}")(
            *(ctypes.c_void_p(a.ctypes.data) for a in args), ctypes.c_long(n)
        )
        return args[2][: len(x)]


@pytest.fixture(
    scope="module", params=[(level, lanes) for level in levels() for lanes in (Lanes.WORDS, Lanes.LONGS)]
)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Functions:
    return Functions(tmp_path_factory.mktemp("math"), *request.param)


def floats(step: int) -> np.ndarray:
    """Every ``step``-th float by its bits, special values, and many numbers of common magnitude."""
    bits = np.arange(step // 2, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([SPECIAL, np.linspace(-20, 20, 50001, dtype=np.float32), bits])


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The error of ``found`` in units in the last place of ``exact``; inf if a special value differs."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        unit = np.spacing(np.clip(np.abs(near), np.float32(2**-126), np.float32(3e38))).astype(np.float64)
        off = np.abs(found.astype(np.float64) - exact) / unit
    special = ~np.isfinite(near) | ~np.isfinite(found) | (near == 0)
    same = (found == near) | (np.isnan(found) & np.isnan(near))
    signs = (near != 0) | (found != 0) | (np.signbit(found) == np.signbit(near))
    off = np.where(special, np.where(same, 0, off), off)
    return np.where(signs & ~np.isnan(off), off, np.inf)


def accurate(functions: Functions, name: str, x: np.ndarray, y: np.ndarray | None = None) -> None:
    precise = OPS[name].numpy
    args = [x] if y is None else [x, y]
    with np.errstate(all="ignore"):
        exact = precise(*(arg.astype(np.float64) for arg in args))
    off = units(functions.run(name, *args), exact)
    worst = int(off.argmax())
    assert off[worst] <= 4, f"{name}{tuple(arg[worst] for arg in args)} is {off[worst]} units off"


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_functions_are_within_4_units(functions: Functions, name: str) -> None:
    accurate(functions, name, floats(65521 if name != "erf" else 262139))


def test_sines_near_multiples_of_pi(functions: Functions) -> None:
    multiples = (np.arange(1, 200000) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate(
        [multiples, -np.nextafter(multiples, np.float32(0)), np.array([2**13, 2**17, 2**20], np.float32)]
    )
    for name in ("sin", "cos"):
        accurate(functions, name, x)


def test_denormal_exponentials(functions: Functions) -> None:
    x = np.linspace(-104.5, -86.5, 200001, dtype=np.float32)
    apart = np.abs(functions.run("exp", x).astype(np.float64) - np.exp(x.astype(np.float64)))
    least = np.where(x < -87.5, 2.0**-149, 4 * 2.0**-149)
    assert (apart <= least).all(), f"exp({x[(apart - least).argmax()]})"


@pytest.mark.parametrize("name", EXACT)
def test_rounding_and_roots_are_exact(functions: Functions, name: str) -> None:
    x = floats(65521)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x)
    found = functions.run(name, x)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(exact)], np.signbit(exact)[~np.isnan(exact)])


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (array.ravel() for array in np.meshgrid(SPECIAL, SPECIAL))
    xs, ys = [a], [b]
    for scale, power in ((3.0, 10.0), (0.01, 1000.0), (1.0, 1.0)):
        xs.append(np.exp(random.standard_normal(count) * scale).astype(np.float32))
        ys.append((random.standard_normal(count) * power).astype(np.float32))
    xs.append(-np.exp(random.standard_normal(count)).astype(np.float32))
    ys.append(random.integers(-20, 20, count).astype(np.float32))
    for values in (xs, ys):
        values.append(random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32))
    return np.concatenate(xs), np.concatenate(ys)


def test_powers_are_within_4_units(functions: Functions) -> None:
    accurate(functions, "pow", *pairs(20000))


def test_remainders_are_exact(functions: Functions) -> None:
    x, y = pairs(5000)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(functions.run("fmod", x, y), np.fmod(x, y))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_functions_over_many_floats(functions: Functions, name: str) -> None:
    accurate(functions, name, floats(509 if name != "erf" else 16381))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_are_rounded_to_nearest(level: int, name: str, tmp_path: Path) -> None:
    kind = np.float16 if name == "f16" else ml_dtypes.bfloat16
    lines = [preamble([Lanes.WORDS]), "const go_kernel GO_NAME(go_kernels)[1];"]
    lines.append(f"void run(const void *x, char *y, long n) {{ for (long i = 0; i < n; i += LANES_w) "
                 f"store_{name}_w(y + 2 * i, load_f32_w((const float *)x + i)); }}")  # fmt: skip
    lines.append(f"void back(const char *x, float *y, long n) {{ for (long i = 0; i < n; i += LANES_w) "
                 f"store_f32_w(y + i, load_{name}_w(x + 2 * i)); }}")  # fmt: skip
    (tmp_path / "halves.c").write_text("\n".join(lines))
    build(tmp_path / "halves.c", tmp_path / "halves.so", level)
    library = ctypes.CDLL(str(tmp_path / "halves.so"))
    every = np.arange(2**16, dtype=np.uint16).view(kind)
    wide = np.empty(2**16, np.float32)
    library.back(ctypes.c_void_p(every.ctypes.data), ctypes.c_void_p(wide.ctypes.data), ctypes.c_long(2**16))
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    with np.errstate(all="ignore"):
        between = np.nextafter(wide, np.float32(np.inf)), (wide[:-1] + wide[1:]) / 2
    x = np.resize(np.concatenate([wide, *between, floats(65521)]), 2**18)
    with np.errstate(all="ignore"):
        expected = x.astype(kind)
    found = np.empty(len(x), kind)
    library.run(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_long(len(x)))
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("level", levels())
def test_divisions_by_constants_are_correctly_rounded(level: int, tmp_path: Path) -> None:
    divisors = [
        1.4142135,
        3.0,
        -255.0,
        0.1,
        1e-20,
        7e19,
        4.0,
        float(np.nextafter(np.float32(2), np.float32(0))),
    ]
    port, access = Port(Element.F32, (Size(1, (0,)),)), Access(0, (Size(1),))
    body = (Instruction("load", Element.F32, access=access), Instruction("constant", Element.F32, value=0.0),
            Instruction("div", Element.F32, (0, 1)))  # fmt: skip
    kernels = [
        Kernel(f"by{index}", (port,), (port,), (Symbol(0, 0),), (Axis(Size(1, (0,))),),
               (Segment((body[0], replace(body[1], value=divisor), body[2]), (Store(access, 2),)),))
        for index, divisor in enumerate(divisors)
    ]  # fmt: skip
    unit = Unit(kernels, tmp_path, level)
    x = floats(16411)
    for index, divisor in enumerate(divisors):
        with np.errstate(all="ignore"):
            exact = x / np.float32(divisor)
        (found,) = unit.run(index, [x])
        tiny = np.abs(x) < 2.0**-100
        np.testing.assert_array_equal(found[~tiny], exact[~tiny])
        np.testing.assert_allclose(found[tiny], exact[tiny], rtol=2e-7, atol=2e-45)
        numbers = ~np.isnan(exact)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(exact[numbers]))
