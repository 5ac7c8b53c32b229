"""The island inside ms-swift's transformers trainer (`swift sft`): the only package that imports `swift.trainers`.

`callback` is what ms-swift calls; `pieces` reads and writes the model; `weights` keeps FP32 values of low-precision
weights; `step_work` counts what a step did. Importing this package imports nothing of them.
"""
