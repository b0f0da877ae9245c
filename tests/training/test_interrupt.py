import os
import signal
import threading

import pytest

from smht.training.interrupt import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_remembered_and_the_second_stops_at_once(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert stop.received is None
        send(number)
        assert stop.received == number.name
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert stop.received == number.name


def test_a_second_signal_may_be_another() -> None:
    with StopRequest() as stop:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.received == "SIGTERM"


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_they_come_back_after_an_error_too() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyboardInterrupt), StopRequest():
        send(signal.SIGINT)
        send(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_handler_that_python_did_not_set_is_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    set_handler = signal.signal
    with monkeypatch.context() as patch:

        def from_elsewhere(number: int, handler: object) -> None:
            set_handler(number, handler)  # pyright: ignore[reportArgumentType]

        patch.setattr(signal, "signal", from_elsewhere)
        stop = StopRequest().__enter__()
    try:
        stop.__exit__(None, None, None)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_outside_the_main_thread_nothing_changes() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    outcome: list[object] = []

    def enter() -> None:
        with StopRequest() as stop:
            outcome.append(stop.received)
            outcome.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert outcome == [None, *before]
