"""Programs that use NVIDIA's own bindings. They print what they see; the output must not depend on the hook."""
