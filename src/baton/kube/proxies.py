"""The proxy for a server from the environment, by the rules of kubectl (and of every other Go program).

`HTTPS_PROXY` or `HTTP_PROXY` applies, by the server's scheme, in upper or lower case, unless `NO_PROXY` covers the
server: a comma-separated list of names (with their subdomains; with a leading dot only the subdomains), addresses, and
networks such as 10.0.0.0/8, each with or without a port, or `*` for everything. Loopback addresses never use a proxy.
"""

import ipaddress
import os
from urllib.parse import SplitResult, urlsplit


def proxy_of(server: str) -> str | None:
    """The proxy for a server; None for a direct connection."""
    target = urlsplit(server)
    found = _variable(f"{target.scheme}_proxy")
    if not found or not target.hostname or _direct(target, target.hostname):
        return None
    return found if "://" in found else f"http://{found}"


def _variable(name: str) -> str:
    return os.environ.get(name.upper()) or os.environ.get(name) or ""


def _direct(target: SplitResult, host: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    port = target.port or {"https": 443}.get(target.scheme, 80)
    return any(_covers(entry.strip().lower(), host, address, port) for entry in _variable("no_proxy").split(","))


def _covers(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry) is None:
        entry, _, wanted = entry.rpartition(":") if ":" in entry else (entry, "", "")
        if wanted and wanted != str(port):
            return False
        entry = entry.strip("[]").removeprefix("*")
    if not entry:
        return False
    if address is not None:
        return _address(entry) == address
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
