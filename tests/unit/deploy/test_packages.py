"""The packages of the images, by what is installed here."""

from importlib.metadata import version

from deploy.images import client_pins, installed_pins, server_pins


def test_the_server_gets_triton_numpy_and_its_library_alone() -> None:
    pins = server_pins("onnxruntime", gpu=False)
    assert {"nvidia-pytriton", "numpy", "onnxruntime-gpu", "protobuf"} <= set(pins)
    assert not {"optuna", "numba", "locust", "tritonclient", "grpcio", "cuda-bindings"} & set(pins)
    assert pins["numpy"] == version("numpy")


def test_a_gpu_needs_its_bindings() -> None:
    assert {"cuda-bindings", "cuda-pathfinder"} <= set(server_pins("onnxruntime", gpu=True))


def test_the_client_needs_no_library_of_models_and_no_search() -> None:
    pins = client_pins()
    assert {"locust", "gevent", "numpy", "grpcio", "click"} <= set(pins)
    assert not {"onnx", "onnxruntime-gpu", "numba", "llvmlite", "optuna", "nvidia-pytriton", "tritune"} & set(pins)


def test_extras_count_where_they_are_asked_for() -> None:
    assert "grpcio" not in installed_pins(["tritonclient"])
    assert "grpcio" in installed_pins(["tritonclient[grpc]"])


def test_what_is_not_installed_is_left_out() -> None:
    assert installed_pins(["no-such-distribution"]) == {}
