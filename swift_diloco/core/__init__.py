"""What island and syncer share: messages, frames, codec, layout, merge, outer optimizer, settings, errors."""
