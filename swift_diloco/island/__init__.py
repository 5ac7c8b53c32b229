"""The island: `brain` decides, `links` move bytes, `numbers` compute, `files` keep, `ranks` agree.

`events` is the wall between brain and shell, `performer` the one door in it, `island` what a trainer holds. The same
rooms are in `syncer`. Knows no trainer.
"""
