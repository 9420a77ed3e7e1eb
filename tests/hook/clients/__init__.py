"""Programs that use NVIDIA's own bindings. They print what they see; with and without the hook it must be the same."""
