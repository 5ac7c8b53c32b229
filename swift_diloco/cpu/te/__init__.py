"""Plain-torch stand-ins for the parts of Transformer Engine that Megatron-Core and mcore-bridge use for dense models.

These are ordinary modules of this package; `swift_diloco.cpu.stand_ins` shows them to Megatron under the names of
`transformer_engine`. They know torch and Megatron's tensor-parallel mappings, and nothing of ms-swift or of DiLoCo.
"""
