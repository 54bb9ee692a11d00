"""Business records that go well, and what stands once they have."""

from __future__ import annotations

from typing import Any

ORDER: dict[str, Any] = {
    "customer": {"name": "Ada Okafor", "email": "ada@example.com"},
    "lines": [{"sku": "TEA-01", "quantity": 2, "unit_price_minor": 1250}],
    "currency": "EUR",
    "card_token": "tok_visa",
    "address": {
        "name": "Ada Okafor",
        "line1": "Rue du Lac 4",
        "city": "Geneva",
        "postcode": "1207",
        "country": "CH",
    },
}
MACHINE: dict[str, Any] = {
    "name": "shop-1.internal.example",
    "region": "eu-west-1",
    "machine_type": "m2.medium",
    "disk_gib": 50,
}
FULL = {"stock": 1, "payments": 1, "shipping": 1, "mail": 1}
"""Effects that stand once an order is done, by service."""
