"""Export: a trained policy as an ONNX file, with a description and a program that plays it."""
