"""Handlers: the values for `handler` arguments, and the reader that a receiver gives."""

from zenlake.api.handlers import Callback, DefaultHandler, FifoChannel, Handler, RingChannel

__all__ = ["Callback", "DefaultHandler", "FifoChannel", "Handler", "RingChannel"]
