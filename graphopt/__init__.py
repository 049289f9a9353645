"""graphopt: an optimizing compiler driver for ONNX models.

>>> import graphopt
>>> result = graphopt.optimize("model.onnx")  # or an onnx.ModelProto, or its bytes
>>> print(result.report)
                original  optimized
    nodes              3          1  −67 %  ...
>>> result.save("model.opt.onnx")
[PosixPath('model.opt.onnx')]

``docs/python.md`` describes the common functions. ``__init__.pyi`` lists the public names. Each is imported
on first use, so that the command line starts quickly.
"""

from time import time_ns as _time_ns

__version__ = "0.2.0"

#: The time of the import, in nanoseconds since 1970. Code in files that changed later may not be imported.
_imported = _time_ns()

#: Former names, which are removed in 0.3, and their replacements.
_DEPRECATED = {"grad": "differentiate", "kernels": "list_kernels"}


def __getattr__(name):
    if name == "__all__":
        return [*_exports(), "__version__"]
    if name in _DEPRECATED:
        import warnings

        message = f"graphopt.{name} is called graphopt.{_DEPRECATED[name]} since version 0.2"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = _DEPRECATED[name]
    if name.startswith("_") or name not in _exports():
        message = f"module {__name__!r} has no attribute {name!r}"
        if not name.startswith("_"):
            from graphopt.errors import nearest_names

            nearest = nearest_names(name, [*_exports(), "__version__"])[:3]
            message += f"; nearest: {', '.join(nearest)}" if nearest else ""
        raise AttributeError(message, name=name)  # without obj, the interpreter appends no suggestion
    from importlib import import_module

    module = _exports()[name]
    return import_module(f"{module}.{name}") if module == __name__ else getattr(import_module(module), name)


def __dir__():
    return sorted([*__getattr__("__all__"), "__all__", "__doc__", "__file__", "__name__", "__path__"])


def _exports():
    """The module of each public name, read from the stub once."""
    if not _found:
        import ast
        from pathlib import Path

        stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        for node in ast.parse(stub).body:
            if isinstance(node, ast.ImportFrom):
                _found.update((alias.name, node.module) for alias in node.names)
    return _found


_found: dict[str, str] = {}
