"""Groups of nodes that run as one kernel, and the kernels: planned, lowered to loops, printed, built.

A group is a function of the domain ``graphopt.native``: without its kernel onnxruntime puts the nodes in the
place of the call, with it the kernel runs. The plan is made on the graph (:mod:`graphopt.fusion.cluster`);
:mod:`graphopt.fusion.loops.ir` is what stands between a group and the code of some device.
"""
