"""What may be given as `handler` to whatever receives, and what reading it looks like."""

from zenlake.api.handlers import Callback, DefaultHandler, FifoChannel, Handler, RingChannel

__all__ = ["Callback", "DefaultHandler", "FifoChannel", "Handler", "RingChannel"]
