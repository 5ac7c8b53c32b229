"""The CPU's answers to questions about CUDA, without putting them in place."""

import contextlib

import torch

from swift_diloco.cpu.cuda import Event, Stream, replacements


def test_every_replacement_stands_for_something_that_torch_cuda_has() -> None:
    missing = [name for name in replacements() if not hasattr(torch.cuda, name)]
    assert missing == []


def test_functions_are_different_objects_as_dynamo_demands() -> None:
    functions = [stand_in for stand_in in replacements().values() if callable(stand_in)]
    assert len({id(function) for function in functions}) == len(functions)


def test_the_device_is_the_cpu_and_is_said_not_to_be_there() -> None:
    table = replacements()
    assert table["current_device"]() == torch.device("cpu") and table["device_count"]() == 1
    assert table["is_available"]() is False and table["get_device_capability"]() == (8, 0)
    assert table["max_memory_reserved"](0) == 0 and table["get_device_properties"](0).name == "cpu"


def test_random_state_is_the_cpu_s() -> None:
    table, before = replacements(), torch.get_rng_state()
    try:
        table["manual_seed"](7)
        state = table["get_rng_state"]("cuda")
        first = torch.rand(3)
        table["set_rng_state"](state)
        assert torch.equal(torch.rand(3), first)
        assert table["default_generators"][torch.device("cpu")] is torch.default_generator
    finally:
        torch.set_rng_state(before)


def test_lazy_calls_are_made_at_once() -> None:
    calls: list[int] = []
    replacements()["_lazy_call"](lambda: calls.append(1))
    assert calls == [1]


def test_streams_and_events_are_always_done() -> None:
    table = replacements()
    stream, event = table["current_stream"](), Event(enable_timing=True)
    assert isinstance(stream, Stream) and isinstance(table["stream"](stream), contextlib.nullcontext)
    event.record(stream)
    assert event.query() and event.elapsed_time(Event()) == 0.0
    assert stream.record_event(event) is event and isinstance(stream.record_event(), Event)
