# mypy: implicit-reexport
"""The input of passes besides the model.

graphopt has no global state: options, analyses, the runtime and the observers are all in the
:class:`Context`, and the caller provides them.
"""

from graphopt.analysis.symbolic import Dim
from graphopt.context.context import Context, context_for
from graphopt.context.observer import Action, Observer, Refusal
from graphopt.context.pass_options import Options
