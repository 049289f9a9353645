"""graphopt view: show the graph of a model in a browser."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError

EXAMPLE = """
graphopt view model.onnx --open
graphopt view model.onnx --port 8000
"""


@command_decorator.command("view", example=EXAMPLE)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Server",
    click.option("--open", "opens", is_flag=True, help="Open the page in the default browser."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]"
    ),
)
@shared_options.device_options
@shared_options.model_options
def command(run: Run, model: Path, opens: bool, port: int) -> Output:
    """Show the graph of a model in a browser.

    Serves a page with the graph on 127.0.0.1 until Ctrl-C. The address contains a random token, without which
    other users and other pages can't read the model. graphopt report writes the page of an optimization to a
    file. Requires the extra report.
    """
    from graphopt.compiler.page_source import view_source
    from graphopt.page.page_server import PageServer
    from graphopt.page.render import page_of

    with run.console.progress(model.name) as advance:
        advance(None, "laying out")
        page = page_of(view_source(run.compiler, model, run.invocation.name_of(model)))
    try:
        server = PageServer(page, port)
    except OSError as error:
        raise UsageError(
            f"port {port} can't be used: {error.strerror}", hint="omit --port for a free one"
        ) from error
    with server, contextlib.suppress(KeyboardInterrupt):
        text = f"  {server.url}  (Ctrl-C ends)"
        if run.console.as_json:
            run.console.note(text)
        else:
            run.console.print(text)
        if opens:
            import webbrowser

            webbrowser.open(server.url_for_one_request())
        server.serve_forever()
    return Output({"model": run.invocation.name_of(model), "url": server.url})
