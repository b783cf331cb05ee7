"""The fixtures of servers.py: the tests of examples/ use them, too."""

from servers import *  # noqa: F403
