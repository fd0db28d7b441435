"""Report on encryption: OpenSSL in this process always does it, since its output goes through the broker's own buffers.
Whether OpenSSL and the kernel could do it together (kernel TLS) is checked for the log only, for operators who study
the cost of TLS. Nothing requires kernel TLS.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def told(proc: Path = PROC) -> str:
    """Return which library encrypts, and why kernel TLS is not used, for the log."""
    by_openssl = hasattr(ssl, "OP_ENABLE_KTLS")
    missing = [
        name for name, offers in (("OpenSSL's", by_openssl), ("the kernel's", _is_in(proc))) if not offers
    ]
    why = f"{' and '.join(missing)} part is missing" if missing else "it is offered here"
    return f"{ssl.OPENSSL_VERSION} in this process; kernel TLS is not used ({why})"


def _is_in(proc: Path) -> bool:
    if (proc / "net" / "tls_stat").exists():
        return True
    try:
        return "tls" in (proc / "sys" / "net" / "ipv4" / "tcp_available_ulp").read_text("ascii").split()
    except OSError:
        return False
