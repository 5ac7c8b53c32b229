"""The benches as a program beside the tests: `python -m tests.bench [NAME …]` is `swift-diloco bench [NAME …]`.

They are run by hand or by a timer, never as tests: a figure of a busy machine proves nothing.
"""
