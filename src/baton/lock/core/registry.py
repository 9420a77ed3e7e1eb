"""The cards, clients and gangs of one machine."""

from baton.lock.core import quantum
from baton.lock.core.events import ClientId, Mode
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang
from baton.model.ids import CardId


class Registry:
    """Finds a card, a client or a gang by its id; knows what applies to cards that appear later."""

    def __init__(self, settings: Settings) -> None:
        self.cards: dict[CardId, Card] = {}
        self.clients: dict[ClientId, Client] = {}
        self.gangs: dict[tuple[int, str], Gang] = {}
        self.on = True
        self.mode: Mode = settings.mode
        self.quantum_s = settings.quantum_s
        self._settings = settings

    def card(self, card_id: CardId, now_s: float) -> Card:
        """The card, created on first use."""
        card = self.cards.get(card_id)
        if card is None:
            card = Card(card_id, 0, self.mode, self.quantum_s, now_s, on=self.on)
            self.cards[card_id] = card
            quantum.refresh(card, self._settings)
        return card

    def add(self, client: Client) -> None:
        """Register a client with its card."""
        self.clients[client.id] = client
        client.card.clients[client.id] = client

    def remove(self, client: Client) -> None:
        """Forget a client, and its gang if it was the last member."""
        gang = client.gang
        if gang is not None and not gang.members:
            del self.gangs[gang.key]
        card = client.card
        card.limited.pop(client.id, None)
        card.clients.pop(client.id, None)
        self.clients.pop(client.id, None)

    def advance(self, now_s: float) -> None:
        """Bring every ledger up to date, for a reader."""
        for card in self.cards.values():
            card.advance(now_s)
            for client in card.holders.values():
                card.bill(client)
            for client in card.active.values():
                card.settle_entitlement(client)
