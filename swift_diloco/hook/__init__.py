"""The start-up hook: what an installed `.pth` file runs at interpreter start (see `start.py`)."""
