"""Scripts of the shapes that users of TorchRL write, with the names and arguments that they use."""
