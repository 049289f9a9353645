"""Gradients of onnx's node tests against finite differences: the fast part of ``benchmarks.gradients``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.gradients import Case, cases, judge, summary

#: Small tests, one of each kind for each family.
QUICK = (
    r"^test_(add_bcast|sub|mul_bcast|div|pow_bcast_array|pow_bcast_scalar|pow|max_three|mean_example|prelu_broadcast"
    r"|where_example|abs|atanh|acosh|celu|clip_example|elu|gelu_tanh_1|hardswish|mish|selu|shrink_soft"
    r"|softplus|softsign|sqrt_example|tan|thresholdedrelu|matmul_.d|gemm_all_attributes|gemm_default_scalar_bias"
    r"|concat_3d_axis_negative_1|split_variable_parts_2d|slice|slice_neg_steps|slice_negative_axes"
    r"|slice_end_out_of_bounds|constant_pad|reflect_pad|edge_pad|wrap_pad|tile|tile_precomputed|expand_dim_changed"
    r"|depthtospace_crd_mode_example|spacetodepth|flatten_axis1|squeeze|unsqueeze_two_axes|transpose_all_permutations_3"
    r"|reduce_(max|prod|l1|l2|log_sum|log_sum_exp|mean|sum|sum_square)_(do_not_)?keepdims_random"
    r"|reduce_sum_default_axes_keepdims_random|cumsum_1d_reverse_exclusive|cumsum_2d_axis_1"
    r"|batchnorm_example|layer_normalization_2d_axis1|layer_normalization_3d_axis_negative_2_epsilon"
    r"|rms_normalization_3d_axis1_epsilon|instancenorm_epsilon|sce_mean_weight_ii|nllloss_NCd1d2_with_weight_reduction_mean"
    r"|resize_upsample_scales_cubic_asymmetric|resize_downsample_scales_linear_antialias|resize_upsample_scales_nearest"
    r"|resize_downsample_sizes_nearest_not_(larger|smaller)|gridsample_bicubic|gridsample_reflection_padding"
    r"|einsum_batch_matmul|einsum_batch_diagonal|det_nd|dft_irfft|dft_rfft_opset19|stft_with_window"
    r"|averagepool_2d_ceil|averagepool_2d_dilations|averagepool_2d_precomputed_(strides|same_upper)|globalmaxpool"
    r"|averagepool_2d_precomputed_pads_count_include_pad|lppool_2d_dilations|lpnormalization_default|lrn_default"
    r"|maxpool_2d_dilations|maxpool_with_argmax_2d_precomputed_pads|maxunpool_export_without_output_shape"
    r"|gather_(0|1|negative_indices)|gather_elements_0|gathernd_example_float32|scatter_elements_with_axis"
    r"|scatternd_(multiply|max_1d)|tensorscatter_circular|compress_1|top_k|cumprod_1d_exclusive"
    r"|reversesequence_batch|ai_onnx_ml_array_feature_extractor"
    r"|basic_conv_with_padding|conv_with_autopad_same|conv_with_strides_and_asymmetric_padding|convtranspose_1d"
    r"|convtranspose_autopad_same|convtranspose_group_2|convtranspose_output_shape|col2im_pads|col2im_dilations"
    r"|deform_conv_with_mask_bias|deform_conv_with_multiple_offset_groups"
    r"|softmax_axis_1|logsoftmax_negative_axis|lstm_with_peepholes|gru_with_initial_bias|simple_rnn_bidirectional"
    r"|attention_3d_gqa_causal|attention_4d_(softcap|attn_mask_bool_4d)"
    r"|attention_4d_gqa_with_past_and_present|attention_3d_transpose_verification|rotary_embedding_interleaved"
    r"|rotary_embedding_3d_input|scan9_sum|scan9_multi_state"
    r"|affine_grid_3d_expanded|optional_get_element_tensor)$"
)


@pytest.fixture(scope="module")
def found() -> list[Case]:
    return list(cases(QUICK))


def test_gradients_of_node_tests_are_correct(found: list[Case]) -> None:
    outcomes = [judge(case) for case in found]
    assert Counter(outcome.verdict for outcome in outcomes) == {"right": len(found)}, summary(outcomes)
    assert len(found) > 60


def test_wrong_gradient_is_detected(found: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.autodiff.rules import elementwise_unary

    case = next(case for case in found if case.name == "test_tan")
    monkeypatch.setitem(elementwise_unary.tan.__dict__, "function", lambda op, node, dy: op.Mul(dy, 2.0))
    assert judge(case).verdict == "wrong"


def test_gradient_that_loses_terms_is_detected(found: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.autodiff.rules import indexing

    def racing(op: Any, node: Any, dy: Any) -> Any:
        return op.ScatterND(op.zeros_like(node.x), op.Unsqueeze(node.input(1), [-1]), dy, reduction="add")

    case = next(case for case in found if case.name == "test_gather_0")
    monkeypatch.setitem(indexing.gather.__dict__, "function", racing)
    outcome = judge(case)
    assert outcome.verdict == "wrong" and "ScatterND" in outcome.reason
