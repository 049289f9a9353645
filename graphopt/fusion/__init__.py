"""Fusion of groups of nodes into native kernels: clustering, lowering to the loop IR, and compilation.

A group is a function of the domain ``graphopt.native``. Without its kernel, onnxruntime inlines the
function; with it, the kernel runs. :mod:`graphopt.fusion.clustering` finds groups,
:mod:`graphopt.fusion.lower_group` lowers them to :mod:`graphopt.fusion.loops.ir`, and
:mod:`graphopt.fusion.backend` is the interface of back ends.
"""
