"""A Valkey server with the rate limiter redis-rl, for trials and tests, not for production."""

from .connection import ReplyError, call
from .server import Server, ServerError, module_path

__all__ = ["ReplyError", "Server", "ServerError", "call", "module_path"]
