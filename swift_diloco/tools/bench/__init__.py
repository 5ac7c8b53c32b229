"""`swift-diloco bench`: how fast this machine runs the parts of the product, each beside a ceiling of the same run.

A figure without its ceiling says more about the machine than about the code, so every line carries both and their
ratio. Knows no trainer; the syncer runs as a process, as it does for users.
"""
