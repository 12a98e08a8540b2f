"""Networks beyond the paper as lists of stages: transformers, BDIA's coupling and invertible down-sampling.

`sizes` has the named sizes of the transformers and does not import torch.
"""
