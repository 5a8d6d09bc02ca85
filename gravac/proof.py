"""How a controller proves that it knows a token without sending it: an HMAC over a challenge that the asker draws.

A client that holds a token asks for this proof before it sends the token, on the same connection, so that a program
that took over the port of a controller learns nothing. Anyone can ask for proofs, so the key is derived slowly: a
proof must not make it cheap to guess a weak token.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from functools import lru_cache

PATH = "/v1/proof"
"""Where a controller answers challenges: ``GET /v1/proof?challenge=<64 hexadecimal digits>``."""
CHALLENGE_PATTERN = "^[0-9a-f]{64}$"
_CONTEXT = b"gravac controller proof 1:"
_ITERATIONS = 50_000
"""About 20 ms, once for each token and process."""


def new_challenge() -> str:
    """Draw a challenge: 32 random bytes as hexadecimal digits."""
    return secrets.token_hex(32)


def prove(token: str, challenge: str) -> str:
    """Answer a challenge.

    Args:
        token: The secret that both sides know.
        challenge: What the other side drew.

    Returns:
        64 hexadecimal digits: HMAC-SHA256 of the challenge under a key derived from the token.
    """
    return hmac.new(_key(token), _CONTEXT + challenge.encode(), hashlib.sha256).hexdigest()


def proves(token: str, challenge: str, proofs: Iterable[str]) -> bool:
    """Return whether one of ``proofs`` shows that the other side knows ``token``. Compares in constant time."""
    wanted = prove(token, challenge).encode()
    return any(hmac.compare_digest(wanted, proof.encode()) for proof in proofs)


@lru_cache(maxsize=8)
def _key(token: str) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", token.encode(), b"gravac proof", _ITERATIONS)
