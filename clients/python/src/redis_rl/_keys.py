"""Keys: of an address, and of the arguments of a function."""

from __future__ import annotations

import inspect
import ipaddress
import re
import string
from collections.abc import Callable
from typing import Any

from ._errors import InvalidKey
from ._policy import Key


def address_key(text: str) -> str:
    """`address:` and an address; of IPv6 its /64, because that is what one client has."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return f"address:{text}"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"address:{ipaddress.ip_network((int(address) >> 64 << 64, 64))}"
        address = address.ipv4_mapped
    return f"address:{address}"


def key_format(key: Key, function: Callable[..., Any]) -> Callable[[Any, Any], Key]:
    """What makes the key of a decorated function from its arguments."""
    if not isinstance(key, str):
        return lambda args, kwargs: key
    signature = inspect.signature(function)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
    except ValueError as error:
        raise InvalidKey(f"{key!r} is no format string: {error}") from None
    for field in fields:
        # Of `user.id` and `user[id]`, `user`.
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if name not in signature.parameters:
            raise InvalidKey(f"{key!r}: the function has no argument {name!r}")

    def key_of(args: Any, kwargs: Any) -> Key:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return key.format(**bound.arguments)

    return key_of
