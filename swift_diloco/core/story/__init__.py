"""The story of a brain: its last events and effects, from where they can be replayed, and the dump that holds them."""
