"""Modules: layers with parameters, and how they are composed."""

from blutrain.nn import init
from blutrain.nn.activation import GELU, Dropout, ReLU, Sigmoid, SiLU, Tanh
from blutrain.nn.containers import ModuleList, Sequential
from blutrain.nn.finite import first_nonfinite
from blutrain.nn.linear import Embedding, Linear
from blutrain.nn.module import HookHandle, Module
from blutrain.nn.norm import LayerNorm, RMSNorm
from blutrain.nn.parameter import Parameter
from blutrain.nn.transformer import MLP, MultiHeadAttention

__all__ = [
    "GELU",
    "MLP",
    "Dropout",
    "Embedding",
    "HookHandle",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "first_nonfinite",
    "init",
]
