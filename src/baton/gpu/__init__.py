"""What a GPU is: inventory, health and telemetry of the cards in this machine.

`cards` holds the vocabulary and `GpuSource`, the interface of an open driver. `vendor` says what a vendor brings, and
`vendors` lists all of them. `nvidia` and `nvml` serve NVIDIA cards, real and simulated alike, because the simulated
driver answers the same library calls. `simulated` and `profiles` make the simulated cards.
"""
