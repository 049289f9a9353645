"""graphopt profile: run a model, and record a profile of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.input_files import arrays_in, recorded_option
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import Count, reads_model, reads_replaceable_data, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import ResourceLimit, RuntimeFailure, UsageError

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.profile import Profile
    from graphopt.specialization.profile_recorder import Recorder

EXAMPLE = """
graphopt profile model.onnx --inputs requests/ -o profile.json
graphopt profile model.onnx --input-shape ids:1x128,1x64,8x32 -o profile.json
graphopt profile model.onnx --inputs monday.npz --inputs tuesday.npz --requires-grad x
graphopt profile model.onnx --inputs requests/ --watch all -o profile.json
graphopt profile model.onnx --merge monday.json --merge tuesday.json -o week.json
"""


@command_decorator.command(
    "profile",
    example=EXAMPLE,
    everyday="-o --merge --inputs --runs --requires-grad --watch --input --input-shape --seed --device",
)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Files",
    shared_options.output_option("Write the profile to this file.", metavar="FILE.json", kind=writes_file),
    click.option(
        "--merge",
        "others",
        type=reads_replaceable_data,
        multiple=True,
        metavar="FILE.json",
        help="Add the runs of this profile of the same model; without inputs, the model is not run.",
    ),
)
@shared_options.model_options
@shared_options.group(
    "Inputs",
    recorded_option(),
    click.option(
        "--runs",
        type=Count(1),
        metavar="N",
        help="Number of runs of each shape, with different numbers.  [default: 1]",
    ),
    click.option(
        "--requires-grad",
        multiple=True,
        metavar="NAME",
        help="Record that a gradient is needed for this input.",
    ),
    shared_options.watch_option("shapes"),
    shared_options.watch_limit_option(default=1024),
)
@shared_options.input_options_of(several=True)
@shared_options.device_options
def command(
    run: Run,
    model: Path,
    output: Path | None,
    others: tuple[Path, ...],
    recorded: tuple[Path, ...],
    runs: int | None,
    requires_grad: tuple[str, ...],
    watch: str | None,
    watch_limit: int,
    input_shapes: tuple[str, ...],
    input_files: tuple[str, ...],
) -> Output:
    """Run a model and record a profile of its values.

    A profile records types and shapes of inputs with their frequency; sizes that never varied, or were always
    equal; contents of small integer inputs, if they are read from files and never varied; and data-dependent
    shapes of inner values. --input-shape x:1x8,4x8 runs each shape on generated numbers; inputs that a file
    lacks are also generated.
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_file
    from graphopt.cli.views.profiles import profile_blocks
    from graphopt.ir.signature import Signature
    from graphopt.profile import Profile
    from graphopt.specialization.profile_recorder import Recorder
    from graphopt.transforms.profile.instrument import Watch

    check_file(output, [".json"])
    wanted = list(_requested_runs(run, recorded, input_shapes, input_files, runs, merges=bool(others)))
    loaded = api.load_model(model)
    device = resolve_options.chosen_device(run)
    with Recorder(loaded, device, requires_grad, Watch(watch or "shapes"), watch_limit) as recorder:
        earlier = [_earlier(path, recorder.profile) for path in others]
        before = Profile.merge_all([*earlier, recorder.profile])  # fails early if they are not compatible
        _record(run, recorder, wanted)
        profile = before.merge(recorder.profile)
    if output is not None:
        profile.write(output)
    inputs = list(Signature.of(loaded).input_types)
    return Output(
        {**profile.to_dict(), "inner_left_out": profile.left_out},
        profile_blocks(profile, inputs, run.verbose),
        notes=[] if output is None else [f"  wrote     {output}"],
    )


def _requested_runs(
    run: Run,
    recorded: Sequence[Path],
    shapes: Sequence[str],
    files: Sequence[str],
    runs: int | None,
    *,
    merges: bool,
) -> Iterator[tuple[str, InputOptions]]:
    """The requested runs, each with a description."""
    from graphopt.inputs.feeds import InputOptions
    from graphopt.inputs.shape_sets import parse_shape_sets

    common = InputOptions.parse((), files, run.settings.seed)
    for path in recorded:
        for file in arrays_in(run, path):
            yield str(file), replace(common, files=(*common.files, (None, file)))
    if not shapes and (recorded or (merges and not files and runs is None)):
        if runs is not None:
            raise UsageError(
                "--runs needs generated inputs", hint="--input-shape NAME:1x128,1x64 gives their shapes"
            )
        return
    for sizes in parse_shape_sets(shapes):
        words = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
        for number in range(runs or 1):
            yield words, replace(common, shapes=sizes, seed=common.seed + number)


def _earlier(path: Path, current: Profile) -> Profile:
    """The profile in ``path``, which must be of the same model as ``current``."""
    from graphopt.profile import Profile

    found = Profile.read(path)
    if found.model != current.model:
        raise UsageError(
            f"{path} is a profile of another model",
            hint="profiles merge if graph, weights and the names of inputs and outputs are the same",
        )
    return found


def _record(run: Run, recorder: Recorder, wanted: Sequence[tuple[str, InputOptions]]) -> None:
    with run.console.progress("profiling") as advance:
        for number, (words, inputs) in enumerate(wanted):
            advance(number / len(wanted), words)
            try:
                recorder.run_generated(inputs)
            except (UsageError, RuntimeFailure, ResourceLimit) as error:
                hint, message = error.hint, error.message
                if isinstance(error, RuntimeFailure) and words and not inputs.shapes:
                    hint = f"leave it out, or run it alone: graphopt run MODEL --input {words}"
                text = message if words in message else f"{words}: {message}"
                raise type(error)(text, hint=hint) from error
