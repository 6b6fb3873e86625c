"""A ServingConfig as Triton's `config.pbtxt`: rendered through the ModelConfig protobuf, and parsed back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from model_repo.repository.own_config import render_own_config
from model_repo.spec import Runtime, ServingConfig, TensorSpec

NATIVE_BACKENDS = {"onnxruntime": ("onnxruntime", "onnxruntime_onnx"), "tensorrt": ("tensorrt", "tensorrt_plan")}
"""Engine backend -> Triton's (`backend`, `platform`) in NVIDIA's container. TensorRT-RTX has none there."""

Config = Mapping[str, Any]
"""The configuration of a model, as Triton's JSON has it."""


_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')


def render_config_pbtxt(config: ServingConfig, *, runtime: Runtime = "python") -> str:
    """Return the text of `config.pbtxt` for this configuration, the same for equal arguments.

    It is complete, so that the server need not guess (`--disable-auto-complete-config`). Raises ValueError if the
    engine cannot run on the native backends.
    """
    if config.engine.own is not None:
        return render_own_config(config)
    new_message, text_format = _protobuf()
    message = new_message(
        name=config.engine.model_name,
        max_batch_size=config.max_batch_size,
        input=[tensor_of(spec, _batch_axis(config, -1)) for spec in config.engine.inputs],
        output=[tensor_of(spec, _batch_axis(config, -1)) for spec in config.engine.outputs],
        instance_group=[
            {"kind": f"KIND_{config.engine.device.upper()}", "count": config.instance_count},
        ],
        model_warmup=_warmup(config),
    )
    if config.dynamic_batching:
        message.dynamic_batching.SetInParent()
        message.dynamic_batching.preferred_batch_size.extend(config.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = config.max_queue_delay_us
    if runtime != "native":
        message.backend = "tritune" if config.engine.served_by(runtime) == "slots" else "python"
    else:
        if config.engine.backend not in NATIVE_BACKENDS:
            raise ValueError(
                f"NVIDIA's container has no backend for {config.engine.backend} engines.\n"
                f"Serve {config.engine.model_name} with the Python backend, or build it for one of "
                f"{', '.join(NATIVE_BACKENDS)}."
            )
        message.backend, message.platform = NATIVE_BACKENDS[config.engine.backend]
        message.default_model_filename = config.engine.model_file
        if config.engine.device == "gpu":
            message.optimization.input_pinned_memory.enable = True
            message.optimization.output_pinned_memory.enable = True
        if config.engine.backend == "tensorrt" and config.cuda_graph_batch_sizes:
            _add_cuda_graphs(message, config)
    for key, value in _parameters(config, runtime).items():
        message.parameters[key].string_value = value
    return str(text_format.MessageToString(message))


def parse_config_pbtxt(text: str, *, allow_unknown_fields: bool = False) -> Any:
    """Return the ModelConfig protobuf message of a `config.pbtxt`. Raises ValueError if the text is not one."""
    new_message, text_format = _protobuf()
    try:
        return text_format.Parse(text, new_message(), allow_unknown_field=allow_unknown_fields)
    except text_format.ParseError as error:
        what = f"This is not a config.pbtxt: {str(error).rstrip('.')}"
        if wrong := _VALUE.search(what):
            names = new_message.DESCRIPTOR.file.pool.FindEnumTypeByName(wrong[1]).values_by_name
            meant = [name for name in names if f"_{name}".endswith(f"_{wrong[2].upper()}")]
            what += f" (Triton has {', '.join(meant or names)})"
        raise ValueError(what) from error
    except RecursionError as error:
        raise ValueError("This is not a config.pbtxt: its brackets are nested too deeply") from error


def config_message(document: Config) -> Any:
    """Return the ModelConfig message of Triton's JSON, without the fields that are unknown to our protobuf."""
    from google.protobuf import json_format  # type: ignore[import-untyped]

    return json_format.ParseDict(document, _protobuf()[0](), ignore_unknown_fields=True)


def config_json(text: str) -> dict[str, Any]:
    """Return a `config.pbtxt` as Triton's JSON, without the fields that are unknown to our protobuf."""
    from google.protobuf import json_format

    message = parse_config_pbtxt(text, allow_unknown_fields=True)
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {**found, "max_batch_size": message.max_batch_size}


def differences(sent: Config, served: Config, own: Config | None = None) -> list[str]:
    """Return, for users, each field of a server's configuration that is not as it was sent.

    A server chooses empty names and lists, and may add what its `own` configuration has; None: anything.
    """
    from google.protobuf import json_format

    style = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    configs = (config_message(config) for config in (sent, served, served if own is None else own))
    one, other, known = (json_format.MessageToDict(message, **style) for message in configs)
    if own is not None:
        known = {name: value for name, value in known.items() if name in one}
    return list(_differences(one, other, known, ""))


def _differences(sent: Any, served: Any, own: Any, name: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(served, dict):
        known = own if isinstance(own, dict) else {}
        for key in sorted(sent.keys() | served.keys()):
            if key in sent or served[key] != known.get(key):
                one, other = (config.get(key, "absent") for config in (sent, served))
                yield from _differences(one, other, known.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(sent, list) and isinstance(served, list) and len(sent) == len(served):
        for at, (one, other) in enumerate(zip(sent, served, strict=True)):
            yield from _differences(one, other, None, f"{name}.{at}")
    elif sent != served and sent not in ("", [], "KIND_AUTO"):
        yield f"{name} is {served!s:.60}, not {sent!s:.60}"


def datatype_of(tensor: Any) -> str:
    """Return the datatype of an input or output in such a message, by its name in the protocol.

    Raises ValueError for a number that is none's.
    """
    types = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    if tensor.data_type not in types:
        raise ValueError(f"the data_type {tensor.data_type} of {tensor.name} is not one of Triton's")
    name: str = types[tensor.data_type].name.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def warmup_batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Return the batch sizes to warm up, ascending: 1, powers of two, and the maximum; (1,) for no batching."""
    powers = {2**exponent for exponent in range(max(1, max_batch_size).bit_length())}
    return tuple(sorted(powers | {max(1, max_batch_size)}))


def graph_batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Return the batch sizes that a GPU executes, ascending; () for no batching. Others are padded to the next.

    They are the powers of two, from 16 on also the sizes halfway between, and the maximum: 1, 2, 4, 8, 16, 24, 32,
    48, 64. Each costs seconds of compiling and recording, and those of a smaller maximum are among them.
    """
    if max_batch_size == 0:
        return ()
    sizes = warmup_batch_sizes(max_batch_size)
    halfway = {3 * size // 2 for size in sizes if size >= 16 and 3 * size // 2 < max_batch_size}
    return tuple(sorted({*sizes, *halfway}))


def executed_batch_sizes(config: ServingConfig) -> tuple[int, ...]:
    """Return the batch sizes that our GPU runtime executes, padding others to the next. () on the CPU."""
    if config.engine.device == "cpu" or config.engine.own is not None or config.max_batch_size == 0:
        return ()
    chosen = config.cuda_graph_batch_sizes or graph_batch_sizes(config.max_batch_size)
    return tuple(sorted({*chosen, config.max_batch_size}))


def _protobuf() -> tuple[Any, Any]:
    """Return the ModelConfig message class and the text_format module; both are slow to import."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig, text_format


def _datatype(spec: TensorSpec) -> str:
    return "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"


def _batch_axis(config: ServingConfig, size: int) -> tuple[int, ...]:
    """Return the batch axis that precedes a tensor's shape in `dims`; () if Triton adds it itself."""
    return (size,) if config.engine.batched and config.max_batch_size == 0 else ()


def tensor_of(spec: TensorSpec, batch_axis: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return an input or output as Triton's JSON has it, with a batch axis that Triton does not add itself."""
    dims = batch_axis + spec.shape
    reshape: dict[str, Any] = {} if dims else {"reshape": {"shape": []}}
    return {"name": spec.name, "data_type": _datatype(spec), "dims": dims or (1,), **reshape}


def _warmup(config: ServingConfig) -> list[dict[str, Any]]:
    """Return warm-up requests of zeros: unlike random numbers, they are valid indices for an embedding."""
    shapes = {spec.name: spec.concrete_shape for spec in config.engine.inputs}
    if any(shape is None for shape in shapes.values()):
        return []
    inputs = {
        spec.name: {
            "data_type": _datatype(spec),
            "dims": (_batch_axis(config, 1) + (shapes[spec.name] or ())) or (1,),
            "zero_data": True,
        }
        for spec in config.engine.inputs
    }
    sizes = executed_batch_sizes(config) or warmup_batch_sizes(config.max_batch_size)
    return [{"name": f"batch_{size}", "batch_size": size, "inputs": inputs} for size in sizes]


def _parameters(config: ServingConfig, runtime: Runtime) -> dict[str, str]:
    engine = config.engine
    if runtime == "native":
        threads = {"intra_op_thread_count": str(config.intra_op_threads), "inter_op_thread_count": "1"}
        return {**threads, "execution_mode": "0"} if engine.backend == "onnxruntime" else {}
    if engine.device == "gpu":
        return {
            "model_file": engine.model_file,
            "engine_backend": engine.backend,
            "batch_sizes": ",".join(str(size) for size in executed_batch_sizes(config)),
            "cuda_graphs": str(int(bool(config.cuda_graph_batch_sizes))),
            "tf32": str(int(engine.precision == "tf32")),
        }
    return {
        "model_file": engine.model_file,
        "intra_op_threads": str(config.intra_op_threads),
        "allow_spinning": "0",
        **dict(config.backend_options),
    }


def _add_cuda_graphs(message: Any, config: ServingConfig) -> None:
    """Add one graph per batch size, valid down to the next smaller size: else only exact sizes replay it."""
    message.optimization.cuda.graphs = True
    shapes = {spec.name: spec.concrete_shape for spec in config.engine.inputs}
    if any(shape is None for shape in shapes.values()):
        raise ValueError(
            f"{config.engine.model_name}: a CUDA graph needs the size of every dimension.\n"
            "Give the shapes of its inputs, or serve it without CUDA graphs."
        )
    lower_bound = 1
    for size in sorted(set(config.cuda_graph_batch_sizes)):
        graph = message.optimization.cuda.graph_spec.add(batch_size=size)
        graph.graph_lower_bound.batch_size = lower_bound
        for name, shape in shapes.items():
            graph.input[name].dim.extend(shape or ())
            graph.graph_lower_bound.input[name].dim.extend(shape or ())
        lower_bound = size + 1
