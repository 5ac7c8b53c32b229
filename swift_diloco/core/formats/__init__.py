"""What is written down or sent: messages, frames, manifests. No arithmetic, no file, no socket."""
