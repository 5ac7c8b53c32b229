"""The island inside ms-swift's Megatron trainer: the only package that imports `swift.megatron` or `megatron.core`.

`callback` is what ms-swift calls; `pieces` reads and writes the model; `step_work` counts what a step did. Importing
this package imports nothing of them: a process that is not a trainer pays nothing.
"""
