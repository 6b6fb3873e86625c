"""Read, check, export and run ONNX models."""
