"""The process that holds the global parameters and takes the outer steps: `brain` decides, `links` move bytes,
`numbers` compute, `files` keep.

`events` is the wall between brain and shell, `server` the one door in it. The same rooms are in `swift_diloco.island`.
Imports nothing of `swift_diloco` but its core, and nothing of torch or of a trainer.
"""
