"""Identifiers that must not be confused with each other or with plain text."""

from typing import NewType

Key = NewType("Key", str)
"""`namespace/name` of any object, or its name where it has no namespace."""
NodeName = NewType("NodeName", str)
PodKey = NewType("PodKey", str)
"""`namespace/name` of a pod."""
PodUid = NewType("PodUid", str)
GroupKey = NewType("GroupKey", str)
"""`namespace/name` of a PodGroup."""
QueueName = NewType("QueueName", str)
CardId = NewType("CardId", str)
"""The UUID that the driver gives a card, such as `GPU-5f2c…`; it survives restarts, unlike the card's index."""
