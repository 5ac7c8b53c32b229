"""`swift-diloco quickstart`: the product's main job on one small machine, from nothing, in one command.

It writes a data set and a model, runs a syncer and two islands as real `megatron sft` (or `swift sft`) processes,
trains one more island alone for comparison, evaluates, and reports. It knows the other parts only from outside:
command lines, files and exit codes.
"""
