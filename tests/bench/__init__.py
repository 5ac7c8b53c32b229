"""Benches for developers, run by hand: a figure of a busy machine proves nothing, so none of them is a test.

What the syncer does for islands that catch up (`python -m tests.bench.catchup`), and what the plugin costs a
`swift sft` job (`python -m tests.bench.hf`). `swift-diloco bench` has those that users need.
"""
