"""What a GPU is: inventory, health and telemetry of the cards in this machine.

`cards` holds the vocabulary and the one interface, `GpuSource`; `nvml` serves it for NVIDIA cards, real ones and
simulated ones alike, because the simulated driver answers the same library calls. Another vendor is another
`GpuSource`. `simulated` and `profiles` make the simulated cards themselves.
"""
