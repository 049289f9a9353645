"""A model whose names and texts attack a page that shows them."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

#: Texts that set ``window.hacked`` if a page writes them as markup, as a script, or as an address.
TEXTS = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "<style>*{display:none}</style>",
    "javascript:window.hacked=1",
    "\"'`${window.hacked=1}{{window.hacked=1}}&lt;",
    "<!--",
    "]]>\u2028window.hacked=1\u2029",
    "__proto__",
)
HOSTILE = " ".join(TEXTS)


def _text(prefix: str) -> str:
    return f"{prefix} {HOSTILE}"


def hostile_model() -> onnx.ModelProto:
    """Relu, calls of a function, and an If; every text of the model is hostile."""
    domain = _text("domain")
    shape = [_text("dim"), 4]
    call = helper.make_node(
        _text("function"), [_text("relu")], [_text("scaled")], _text("call"), domain=domain, note=HOSTILE
    )
    nodes = [
        helper.make_node("Identity", [_text("input")], [_text("same")], "__proto__/constructor/__proto__"),
        helper.make_node("Relu", [_text("same")], [_text("relu")], _text("relu")),
        call,
        helper.make_node("ReduceSum", [_text("scaled")], [_text("sum")], _text("reduce"), keepdims=0),
        helper.make_node("Cast", [_text("sum")], [_text("condition")], _text("cast"), to=TensorProto.BOOL),
        helper.make_node(
            "If",
            [_text("condition")],
            [_text("output")],
            _text("if"),
            then_branch=_branch("Exp"),
            else_branch=_branch("Neg"),
        ),
    ]
    graph = helper.make_graph(
        nodes,
        _text("graph"),
        [helper.make_tensor_value_info(_text("input"), TensorProto.FLOAT, shape, _text("input"))],
        [helper.make_tensor_value_info(_text("output"), TensorProto.FLOAT, shape, _text("output"))],
        doc_string=HOSTILE,
        value_info=[helper.make_tensor_value_info(_text("relu"), TensorProto.FLOAT, shape, _text("value"))],
    )
    body = [
        helper.make_node("Constant", [], [_text("two")], _text("constant"), value_float=2.0),
        helper.make_node("Mul", [_text("x"), _text("two")], [_text("y")], _text("mul")),
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    function = helper.make_function(
        domain, _text("function"), [_text("x")], [_text("y")], body, imports[:1], [_text("attribute")]
    )
    model = helper.make_model(
        graph, functions=[function], opset_imports=imports, ir_version=10, producer_name=HOSTILE
    )
    model.doc_string = model.producer_version = HOSTILE
    helper.set_model_props(model, {_text("key"): HOSTILE})
    for node in [*model.graph.node, *model.functions[0].node]:
        node.doc_string = HOSTILE
        node.metadata_props.add(key=_text("key"), value=HOSTILE)
    model.functions[0].doc_string = HOSTILE
    return model


def _branch(op: str) -> onnx.GraphProto:
    result = _text(op)
    node = helper.make_node(op, [_text("scaled")], [result], _text(op))
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [_text("dim"), 4])
    return helper.make_graph([node], _text("body"), [], [info])
