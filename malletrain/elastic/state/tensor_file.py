"""Tensors by name in one file of the safetensors format: a JSON header, then bytes. Reading it executes nothing.

The format's own library maps files into memory and takes paths only. Here a file is read and written by descriptor,
and what was read stays valid when the file is removed by another node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import BufferedReader
from typing import BinaryIO

import torch

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.state.transfer import as_bytes

MAX_HEADER_BYTES = 100_000_000

_LENGTH_BYTES = 8

#: Names of the format. Tensors of other types are stored as their bytes.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_tensors(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and texts. Raises OSError."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        known = tensor.dtype in _NAMES
        header[name] = {
            "dtype": _NAMES.get(tensor.dtype, "U8"),
            "shape": list(tensor.shape) if known else [size],
            "data_offsets": [begin, begin + size],
        }
        begin += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for tensor in tensors.values():
        if tensor.numel():
            file.write(as_bytes(tensor).numpy().data)


def read_tensors(file: BufferedReader) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read what `write_tensors` has written: tensors, and texts. Raises `ElasticError`: it is no such file, its
    header is not right, or it is cut."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 0 < length <= MAX_HEADER_BYTES:
        raise ElasticError("it is not a file of tensors")
    try:
        header = json.loads(file.read(length))
        metadata = {str(key): str(text) for key, text in header.pop("__metadata__", {}).items()}
        entries = [
            (name, _DTYPES[each["dtype"]], tuple(map(int, each["shape"])), *map(int, each["data_offsets"]))
            for name, each in header.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ElasticError(f"its header cannot be read: {type(error).__name__} {error}") from error
    found: dict[str, torch.Tensor] = {}
    at = 0
    for name, dtype, shape, begin, end in sorted(entries, key=lambda entry: entry[3:]):
        if begin != at or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != end - begin:
            raise ElasticError(f"its header contradicts itself at {name[:100]!r}")
        found[name] = _read(file, end - begin).view(dtype).reshape(shape)
        at = end
    return found, metadata


def _read(file: BufferedReader, size: int) -> torch.Tensor:
    content = torch.empty(size, dtype=torch.uint8)
    if size and file.readinto(content.numpy().data) != size:
        raise ElasticError("it is cut")
    return content
