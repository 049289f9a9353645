"""LSTM, GRU and RNN in C: the schedule is in ``products/recurrences.h``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import OUT_OF_MEMORY, PackedConstant, TemplatePrinter
from graphopt.fusion.templates.recurrence import Activation, RecurrenceParameters

#: Activations of a vector x, with the parameters alpha and beta. NaN like in onnxruntime's functions.
_FUNCTIONS = {
    "relu": "more_w(x, splat_f32_w(0))",
    "tanh": "tanh_w(x)",
    "sigmoid": "sigmoid_w(x)",
    "softsign": "x / (1 + abs_f32_w(x))",
    "softplus": "log_w(1 + exp_w(x))",
    "affine": "alpha * x + beta",
    "leakyrelu": "select_f32_w(x >= 0, x, alpha * x)",
    "thresholdedrelu": "select_f32_w(x > alpha, x, splat_f32_w(0))",
    "scaledtanh": "alpha * tanh_w(beta * x)",
    "hardsigmoid": "less_w(more_w(alpha * x + beta, splat_f32_w(0)), splat_f32_w(1))",
    "elu": "select_f32_w(x >= 0, x, alpha * (exp_w(x) - 1))",
}
#: Functions of the header, which are quicker.
_IN_HEADER = {"tanh": "tanh_w", "sigmoid": "go_gate_logistic"}
_X, _W, _R, _B, _LENGTHS, _H, _C, _P = range(8)


class RecurrencePrinter(TemplatePrinter):
    """Operands X, W, R, B, sequence_lens, initial_h and, for LSTM, initial_c and P; results Y, Y_h, Y_c."""

    names = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    headers = ("products/panels.h", "products/recurrences.h", "products/recurrent_gates.h")
    state = "go_recurrence recurrence;"
    runs_empty = True  # the states are results, too

    @property
    def _parameters(self) -> RecurrenceParameters:
        parameters: RecurrenceParameters = self.kernel.parameters
        return parameters

    def constants(self) -> Sequence[PackedConstant]:
        """W and R, in panels."""
        kind = self._parameters.op.lower()
        return (
            PackedConstant(_W, f"go_{kind}_bytes", f"go_{kind}_pack_w"),
            PackedConstant(_R, f"go_{kind}_bytes", f"go_{kind}_pack_r"),
        )

    def dims(self) -> Sequence[Sequence[str]]:
        """Y is [steps, directions, batch, hidden], and the states are [directions, batch, hidden]."""
        directions, hidden = str(self._parameters.directions), str(self._parameters.hidden)
        state = [directions, f"in{_X}[1]", hidden]
        return [[f"in{_X}[0]", *state], *[state] * (len(self.kernel.results) - 1)]

    def checks(self) -> Iterator[str]:
        """The shapes of all operands, and the lengths of sequences."""
        steps, batch, inputs = (f"in{_X}[{axis}]" for axis in range(3))
        directions, hidden, gates = (
            self._parameters.directions,
            self._parameters.hidden,
            self._parameters.gates,
        )
        state = (directions, batch, hidden)
        expected: dict[int, Sequence[str | int]] = {
            _W: (directions, gates * hidden, inputs),
            _R: (directions, gates * hidden, hidden),
            _B: (directions, 2 * gates * hidden),
            _LENGTHS: (batch,),
            _H: state,
            _C: state,
            _P: (directions, 3 * hidden),
        }
        for operand, place in enumerate(self.kernel.operands):
            if operand != _X and place is not None:
                yield from self.shapes.shape(operand, expected[operand])
        if self.operand(_LENGTHS) is not None:
            yield f"    for (int64_t row = 0; row < {batch}; row++) {{"
            yield f"        const int32_t length = ((const int32_t *)run->in[{_LENGTHS}])[row];"
            message = "sequence_lens contains %lld, 0 to %lld expected"
            yield from require(f"length >= 0 && length <= {steps}", message, "length", steps)
            yield "    }"

    def functions(self) -> str:
        """The gates of each direction, and the function of a chunk of work."""
        parts = []
        for number, activations in enumerate(self._parameters.activations):
            functions = [self._function(activation, number, at) for at, activation in enumerate(activations)]
            parts += [text for _, text in functions if text]
            parts += self._gates(number, [name for name, _ in functions])
        kinds = ", ".join(self._kind(number) for number in range(self._parameters.directions))
        parts.append(f"static const go_cell_kind {self.name}_kinds[] = {{{kinds}}};")
        parts.append(
            f"static void {self.name}_chunk(void *data, size_t chunk) {{\n"
            f"    {self.name}_run *const run = data;\n"
            "    go_recurrence_compute(&run->recurrence, (int64_t)chunk);\n"
            "}"
        )
        return "\n".join(parts) + "\n"

    def _function(self, activation: Activation, direction: int, place: int) -> tuple[str, str]:
        """The name of an activation in C, and its definition unless it is in a header."""
        if self._parameters.op != "RNN" and activation.name in _IN_HEADER:
            return _IN_HEADER[activation.name], ""
        name = f"{self.name}_{direction}_{place}"
        numbers = "".join(
            f"    const float {parameter} = {float_literal(getattr(activation, parameter))};\n"
            for parameter in ("alpha", "beta")
            if parameter in _FUNCTIONS[activation.name]
        )
        return (
            name,
            f"GO_INLINE f32_w {name}(f32_w x) {{\n{numbers}    return {_FUNCTIONS[activation.name]};\n}}",
        )

    def _gates(self, direction: int, functions: Sequence[str]) -> list[str]:
        """The functions of the gates of a direction."""
        parameters = self._parameters
        given = [*functions, float_literal(parameters.clip)]
        biased = str(int(self.operand(_B) is not None))
        if parameters.op == "LSTM":
            calls = [("before", "go_lstm_gates", [*given, biased, str(int(parameters.coupled))])]
        elif parameters.op == "GRU":
            update = ("go_gru_update", [*given, biased, str(int(parameters.linear))])
            calls = [("after", *update)]
            if not parameters.linear:
                calls.append(("before", "go_gru_reset", [functions[0], given[-1], biased]))
        else:
            calls = [("before", "go_rnn_gate", given)]
        head = "const go_cell *cell, int64_t first, int64_t stop"
        return [
            f"static void {self.name}_{direction}_{when}({head}) {{\n"
            f"    {function}({', '.join(['cell', 'first', 'stop', *arguments])});\n"
            "}"
            for when, function, arguments in calls
        ]

    def _kind(self, direction: int) -> str:
        parameters, name = self._parameters, f"{self.name}_{direction}"
        first = 2 if parameters.op == "GRU" else parameters.gates
        before = "NULL" if parameters.linear else f"{name}_before"
        after = f"{name}_after" if first < parameters.gates else "NULL"
        numbers = (parameters.gates, first, int(parameters.linear), int(parameters.op == "RNN"))
        return f"{{{', '.join(map(str, numbers))}, {before}, {after}}}"

    def run(self) -> Iterator[str]:
        """One call of the schedule."""
        parameters = self._parameters

        def given(operand: int) -> str:
            present = operand < len(self.kernel.operands) and self.kernel.operands[operand] is not None
            return f"run->in[{operand}]" if present else "NULL"

        def result(number: int) -> str:
            present = number < len(self.kernel.results) and self.kernel.results[number] is not None
            return f"run->out[{number}]" if present else "NULL"

        yield f"    if (in{_X}[1] == 0) return 0;"
        yield "    run->recurrence = (go_recurrence){"
        yield f"        .x = run->in[{_X}], .w = {self.packed(_W)}, .r = {self.packed(_R)},"
        yield f"        .b = {given(_B)}, .h0 = {given(_H)}, .c0 = {given(_C)}, .peepholes = {given(_P)},"
        yield f"        .lengths = {given(_LENGTHS)}, .yh = {result(1)}, .yc = {result(2)},"
        yield (
            f"        .y = {result(0)},"
            if self.is_direct
            else f"        .finish = {self.finish}, .data = run,"
        )
        yield f"        .steps = in{_X}[0], .batch = in{_X}[1], .inputs = in{_X}[2],"
        yield f"        .hidden = {parameters.hidden},"
        yield f"        .directions = {parameters.directions}, .reverse = {int(parameters.reverse)},"
        yield f"        .kinds = {self.name}_kinds,"
        yield "    };"
        yield "    if (!run->recurrence.w || !run->recurrence.r) return 1;"
        yield f"    go_recurrence_run(call, &run->recurrence, {self.name}_chunk, run);"
        yield from require("!run->recurrence.failed", OUT_OF_MEMORY)


PRINTER = RecurrencePrinter
