"""Move bytes: the socket, the peers behind it, uploads and fetches. They decide nothing."""
