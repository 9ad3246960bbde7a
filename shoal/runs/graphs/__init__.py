"""What a policy computes, as a graph of ONNX operators that runs in NumPy."""
