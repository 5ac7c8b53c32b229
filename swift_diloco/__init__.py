"""Decoupled DiLoCo for ms-swift: one model, trained on several islands.

Importing this package has no effects and imports nothing else: the start-up hook loads it in processes that may
turn out not to be ours.
"""

__version__ = "0.1.0"
