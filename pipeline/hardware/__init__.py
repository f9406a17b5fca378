"""What differs between Ascend NPUs, CUDA GPUs and plain CPUs: engine settings, environment, package pins, remedies.

The only place that may import torch_npu, and only where an NPU is; importing this package loads none of it.
"""
