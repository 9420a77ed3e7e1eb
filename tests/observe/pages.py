"""A page of metrics as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families

from baton.observe.metrics import Metrics


class Page:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, /, **labels: str) -> float | None:
        """The value of one series; None when it is not on the page."""
        return self._samples.get((name, frozenset(labels.items())))


async def scrape(metrics: Metrics) -> Page:
    return Page((await metrics.page()).decode())
