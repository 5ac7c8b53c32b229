"""Move bytes: control and bulk links, fetches, uploads. They decide nothing."""
