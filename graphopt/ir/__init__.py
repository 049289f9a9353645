# mypy: implicit-reexport
"""The intermediate representation: onnx-ir's classes, and graphopt's additions.

The rest of graphopt uses it as ``from graphopt import ir``. Only this package accesses onnx-ir's internals,
and only :class:`Editor` changes a model.
"""

from typing import TYPE_CHECKING

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.attributes import dtype_of_number, make_attributes, named_dtype
from graphopt.ir.constant_graph import ConstantGraph, Expression, Operation, constant_graph_of
from graphopt.ir.constants import (
    COPIED_OUTPUTS,
    FUNCTIONS,
    LOADED_WITH,
    as_variables,
    computable,
    constant_of,
    copy_variables,
    depends_on_weights,
    fill_of_tensor,
    is_overridable,
    read,
    read_for_facts,
    read_to_compute,
    scalar_of,
)
from graphopt.ir.declared_dims import (
    ANONYMOUS_DIMS,
    all_ints,
    declare_dim,
    declared_values,
    fresh_dim,
    unnamed_dim,
)
from graphopt.ir.editor.constants import ConstantRefused
from graphopt.ir.editor.editor import Editor
from graphopt.ir.fingerprint import attribute_key, fingerprint, function_fingerprints, functions_callees_first
from graphopt.ir.folded_initializers import FoldRecord, build_in, fold_record, keep_record
from graphopt.ir.initializer_reads import (
    constants_in,
    digest_of,
    merged_into,
    read_record_of,
    sources_of,
    track,
)
from graphopt.ir.io.codecs import codec_of
from graphopt.ir.io.data_of import DataOf
from graphopt.ir.io.foreign_formats import folder_hint
from graphopt.ir.io.interoperability import ModelLike, as_model, serialized
from graphopt.ir.io.kept_data import KeptData, check_kept
from graphopt.ir.io.load import check_is_model, data_files, load, metadata_of
from graphopt.ir.io.proto_conversion import from_proto, to_proto, to_whole_proto
from graphopt.ir.io.save import (
    check_format,
    has_external_data,
    save,
    save_together,
    saving,
    to_bytes,
    to_bytes_beside_data,
)
from graphopt.ir.nested_graphs import (
    Scopes,
    bodies,
    count_all_nodes,
    count_nodes,
    graphs_of,
    in_order,
    standard_version,
    values_of,
    walk_nodes,
    with_bodies,
)
from graphopt.ir.opaque_parts import drop_training_info, has_training_info, opaque_attribute, opaque_type
from graphopt.ir.print_values import constant_text, declared_type, type_text
from graphopt.ir.printer import (
    Names,
    print_model,
    print_node,
)
from graphopt.ir.provenance import (
    DerivationStep,
    absorbed,
    created_by,
    derivation_steps,
    folded_from,
    is_fused,
    is_within,
    label,
    makers,
    mark_fused,
    noted_scopes,
    origins,
    record_origin,
)
from graphopt.ir.region.clone import (
    Cloner,
    captured,
    captures,
    clone,
    clone_function,
    model_of,
    reads,
)
from graphopt.ir.region.extract import extract
from graphopt.ir.region.inline import inline_call, inline_obstacle
from graphopt.ir.region.outline import FUNCTIONS_SINCE, functions_obstacle, outline, outline_obstacle
from graphopt.ir.schema_checks import (
    MICROSOFT,
    RUNTIME_DOMAINS,
    find_misuse,
    find_unknown,
    is_beyond_standard,
    operator_schema,
)
from graphopt.ir.standard_functions import TensorKind, standard_function
from graphopt.ir.topological_order import feed_order, find_cycle, is_sorted, sort_model
from graphopt.ir.validation import find_fault, validate
from graphopt.ir.value_uses import is_read, only_reader, readers, use_count
from graphopt.ir.weights import hash_of, initializer_bytes, slots, storage_of, tag_of, tied_storages
from graphopt.util.model_suffixes import suffixes

if TYPE_CHECKING:
    from graphopt.ir.json import from_json, schema, to_json
else:

    def __getattr__(name):
        """The functions of the JSON IR, which few runs use."""
        if name in ("from_json", "schema", "to_json"):
            from graphopt.ir import json

            return getattr(json, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


Attr = onnx_ir.Attr
AttributeType = onnx_ir.AttributeType
DataType = onnx_ir.DataType
ExternalTensor = onnx_ir.ExternalTensor
Function = onnx_ir.Function
Graph = onnx_ir.Graph
Model = onnx_ir.Model
Node = onnx_ir.Node
OptionalType = onnx_ir.OptionalType
RefAttr = onnx_ir.RefAttr
SequenceType = onnx_ir.SequenceType
Shape = onnx_ir.Shape
SparseTensorType = onnx_ir.SparseTensorType
StringTensor = onnx_ir.StringTensor
SymbolicDim = onnx_ir.SymbolicDim
Tensor = onnx_ir.Tensor
TensorProtocol = onnx_ir.TensorProtocol
TensorType = onnx_ir.TensorType
TypeProtocol = onnx_ir.TypeProtocol
Value = onnx_ir.Value
tensor = onnx_ir.tensor
deserialize_attribute = onnx_ir.serde.deserialize_attribute
deserialize_tensor = onnx_ir.serde.deserialize_tensor
serialize_attribute = onnx_ir.serde.serialize_attribute
serialize_tensor = onnx_ir.serde.serialize_tensor
