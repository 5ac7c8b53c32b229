"""See the package."""

import runpy

if __name__ == "__main__":
    runpy.run_module("swift_diloco.tools.bench", run_name="__main__")
