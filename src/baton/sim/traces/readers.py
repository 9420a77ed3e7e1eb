"""Readers of job and node lists, in the public formats and in Baton's own.

The columns identify the format, so users give only a path; `.gz` files are decompressed. The reader skips and counts
rows that it cannot use, with the line and the field at fault; it never guesses. A file without a usable row, or whose
header matches no format, is an error.

Baton's own format is CSV with the field names of `TraceJob` (or `TraceNode`) as its header, or JSON lines with the same
names as keys. Only `name` (and `cards` for a node) is required.
"""

import csv
import datetime
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from baton.engine.cards.fragmentation import WHOLE_CARD
from baton.errors import BatonError, UsageError
from baton.model.suggestions import did_you_mean
from baton.sim.traces.workload import Skipped, Trace, TraceJob, TraceNode

Row = Mapping[str, str]
Item = TypeVar("Item", TraceJob, TraceNode)

DEFAULT_CARDS_PER_NODE = 8


class BadFieldError(ValueError):
    """An invalid field of a row: its name, its value and the expected value."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {value!r}, expected {expected}")


def _number(row: Row, field: str, *, at_least: float | None = None, above: float | None = None) -> float:
    text = row[field]
    try:
        value = float(text)
    except ValueError:
        raise BadFieldError(field, text, "a number") from None
    if not math.isfinite(value):
        raise BadFieldError(field, text, "a finite number")
    if at_least is not None and value < at_least:
        raise BadFieldError(field, text, f"at least {at_least:g}")
    if above is not None and value <= above:
        raise BadFieldError(field, text, f"more than {above:g}")
    return value


def _whole(row: Row, field: str, *, at_least: int = 0) -> int:
    value = _number(row, field, at_least=at_least)
    if value != int(value):
        raise BadFieldError(field, row[field], "a whole number")
    return int(value)


def split_gang(gpus: int, cards_per_node: int) -> tuple[int, int]:
    """Tasks and cards per task for a total number of cards: as few equal tasks as the nodes allow."""
    for cards in range(min(gpus, cards_per_node), 0, -1):
        if gpus % cards == 0:
            return gpus // cards, cards
    return 1, 0


def _openb_job(row: Row, line: int, cards_per_node: int) -> TraceJob:  # noqa: ARG001  # the form of a reader
    cards = _whole(row, "num_gpu")
    milli = 0
    if cards:
        milli = _whole(row, "gpu_milli", at_least=1)
        if milli > WHOLE_CARD:
            raise BadFieldError("gpu_milli", row["gpu_milli"], f"at most {WHOLE_CARD}")
        if cards > 1 and milli != WHOLE_CARD:
            raise BadFieldError("gpu_milli", row["gpu_milli"], f"{WHOLE_CARD} when num_gpu is {cards}")
    submit_s, duration_s = 0.0, None
    if row.get("creation_time") and row.get("deletion_time"):
        submit_s = _number(row, "creation_time")
        lasted = _number(row, "deletion_time") - submit_s
        if lasted < 0:
            raise BadFieldError(
                "deletion_time", row["deletion_time"], f"not before creation_time {row['creation_time']}"
            )
        # The trace counts whole seconds: a job that begins and ends in the same second still ran.
        duration_s = max(lasted, 1.0)
    return TraceJob(
        name=row["name"],
        submit_s=submit_s,
        duration_s=duration_s,
        cards=cards,
        milli=milli,
        cpu_milli=_whole(row, "cpu_milli"),
        memory_mib=_whole(row, "memory_mib"),
        models=tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|")))),
        tenant=row.get("qos") or "default",
        queue=row.get("qos") or "default",
        utilisation=milli / WHOLE_CARD if milli else 1.0,
    )


def _philly_job(row: Row, line: int, cards_per_node: int) -> TraceJob:
    try:
        moment = datetime.datetime.fromisoformat(row["timestamp"]).replace(tzinfo=datetime.UTC)
    except ValueError:
        raise BadFieldError("timestamp", row["timestamp"], "a date such as 2017-09-04 10:30:41") from None
    gpus = _whole(row, "num_gpus", at_least=1)
    tasks, cards = split_gang(gpus, cards_per_node)
    return TraceJob(
        name=f"philly-{line - 1:05}",
        submit_s=moment.timestamp(),
        duration_s=_number(row, "duration", above=0),
        tasks=tasks,
        cards=cards,
        tenant=row["cluster"] or "default",
        queue=row["cluster"] or "default",
        family=f"{row['cluster']}/{gpus}",
    )


def _muri_job(row: Row, line: int, cards_per_node: int) -> TraceJob:  # noqa: ARG001  # the form of a reader
    tasks, cards = split_gang(_whole(row, "num_gpu", at_least=1), cards_per_node)
    iteration_ms = _number(row, "iteration_time", above=0)
    return TraceJob(
        name=f"muri-{row['job_id']}",
        submit_s=_number(row, "submit_time", at_least=0) / 1000,
        duration_s=_number(row, "duration", above=0) / 1000,
        tasks=tasks,
        cards=cards,
        priority=_whole(row, "priority"),
        family=f"{row['model_name']}/{row['batch_size']}/{row['num_gpu']}",
        # The stages of an iteration are 0: CPU, 1: GPU, 2: network; a card is busy in stage 1.
        utilisation=min(1.0, _number(row, "resource_time_1", at_least=0) / iteration_ms),
    )


def _tiresias_job(row: Row, line: int, cards_per_node: int) -> TraceJob:  # noqa: ARG001  # the form of a reader
    tasks, cards = split_gang(_whole(row, "num_gpu", at_least=1), cards_per_node)
    return TraceJob(
        name=f"tiresias-{row['job_id']}",
        submit_s=_number(row, "submit_time", at_least=0),
        duration_s=_number(row, "duration", above=0),
        tasks=tasks,
        cards=cards,
        family=f"{row['model_name']}/{row['num_gpu']}",
    )


def _own_job(row: Row, line: int, cards_per_node: int) -> TraceJob:  # noqa: ARG001  # the form of a reader
    given: dict[str, Any] = {key: value for key, value in row.items() if value != ""}
    if isinstance(given.get("models"), str):
        given["models"] = tuple(filter(None, given["models"].split("|")))
    return checked_job(_converted(given, TraceJob))


def _openb_node(row: Row, line: int, cards_per_node: int) -> TraceNode:  # noqa: ARG001  # the form of a reader
    return TraceNode(
        name=row["sn"],
        cards=_whole(row, "gpu"),
        cpu_milli=_whole(row, "cpu_milli"),
        memory_mib=_whole(row, "memory_mib"),
        model=row["model"],
    )


def _own_node(row: Row, line: int, cards_per_node: int) -> TraceNode:  # noqa: ARG001  # the form of a reader
    node = _converted({key: value for key, value in row.items() if value != ""}, TraceNode)
    for field in ("cards", "cpu_milli", "memory_mib", "card_memory_mib"):
        if getattr(node, field) < 0:
            raise BadFieldError(field, getattr(node, field), "at least 0")
    return node


def _converted(given: Mapping[str, Any], kind: type[Item]) -> Item:
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        field = where.rstrip("`")
        if not field:
            raise ValueError(f"invalid row: {message[:1].lower()}{message[1:]}") from None
        raise BadFieldError(field, given.get(field), message.removeprefix("Expected ")) from None


def checked_job(job: TraceJob) -> TraceJob:
    """The job, if every field is in its range."""
    if not job.name:
        raise BadFieldError("name", job.name, "a non-empty name")
    if not math.isfinite(job.submit_s):
        raise BadFieldError("submit_s", job.submit_s, "a finite number")
    if job.duration_s is not None and not (math.isfinite(job.duration_s) and job.duration_s > 0):
        raise BadFieldError("duration_s", job.duration_s, "a finite number above 0")
    if job.tasks < 1:
        raise BadFieldError("tasks", job.tasks, "at least 1")
    for field in ("cards", "cpu_milli", "memory_mib", "card_memory_mib"):
        if getattr(job, field) < 0:
            raise BadFieldError(field, getattr(job, field), "at least 0")
    if job.cards and not 1 <= job.milli <= WHOLE_CARD:
        raise BadFieldError("milli", job.milli, f"1 to {WHOLE_CARD}")
    if job.cards > 1 and job.milli != WHOLE_CARD:
        raise BadFieldError("milli", job.milli, f"{WHOLE_CARD} when cards is {job.cards}")
    if not 0 <= job.utilisation <= 1:
        raise BadFieldError("utilisation", job.utilisation, "0 to 1")
    return job


class TraceFormat(NamedTuple, Generic[Item]):
    """How to recognise a format by its header and how to read one row of it."""

    required: frozenset[str]
    read: Callable[[Row, int, int], Item]
    allowed: frozenset[str] | None = None


JOB_FORMATS: dict[str, TraceFormat[TraceJob]] = {
    "openb": TraceFormat(frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}), _openb_job),
    "philly": TraceFormat(frozenset({"timestamp", "duration", "num_gpus", "cluster"}), _philly_job),
    "muri": TraceFormat(
        frozenset({"job_id", "num_gpu", "submit_time", "duration", "iteration_time", "resource_time_1", "priority"}),
        _muri_job,
    ),
    "tiresias": TraceFormat(frozenset({"job_id", "num_gpu", "submit_time", "model_name", "duration"}), _tiresias_job),
    "baton": TraceFormat(frozenset({"name"}), _own_job, frozenset(TraceJob.__struct_fields__)),
}
NODE_FORMATS: dict[str, TraceFormat[TraceNode]] = {
    "openb": TraceFormat(frozenset({"sn", "cpu_milli", "memory_mib", "gpu", "model"}), _openb_node),
    "baton": TraceFormat(frozenset({"name", "cards"}), _own_node, frozenset(TraceNode.__struct_fields__)),
}


def read_jobs(path: Path, form: str | None = None, cards_per_node: int = DEFAULT_CARDS_PER_NODE) -> Trace:
    """The jobs of a trace, in order of submission; `cards_per_node` splits gangs of which only the size is known."""
    jobs, skipped = _read(path, form, JOB_FORMATS, cards_per_node)
    return Trace(str(path), tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(skipped))


def read_nodes(path: Path, form: str | None = None) -> tuple[tuple[TraceNode, ...], tuple[Skipped, ...]]:
    """The nodes of a cluster."""
    nodes, skipped = _read(path, form, NODE_FORMATS, DEFAULT_CARDS_PER_NODE)
    return tuple(nodes), tuple(skipped)


def format_jobs(jobs: Sequence[TraceJob], *, json_lines: bool) -> bytes:
    """Jobs in Baton's own format."""
    if json_lines:
        return b"".join(msgspec.json.encode(job) + b"\n" for job in jobs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TraceJob.__struct_fields__)
    for job in jobs:
        values = msgspec.structs.asdict(job) | {"models": "|".join(job.models)}
        writer.writerow("" if value is None else value for value in values.values())
    return text.getvalue().encode()


def _read(
    path: Path, form: str | None, formats: Mapping[str, TraceFormat[Item]], cards_per_node: int
) -> tuple[list[Item], list[Skipped]]:
    if form is not None and form not in formats:
        raise UsageError(f"no trace format {form!r}; there are {', '.join(formats)}")
    found: list[Item] = []
    skipped: list[Skipped] = []
    names: set[str] = set()
    with _opened(path) as stream:
        try:
            header, rows = _rows(path, stream)
            reader = _format_of(path, header, form, formats)
            for line, row in rows:
                try:
                    if isinstance(row, str):
                        raise ValueError(row)
                    item = reader.read(row, line, cards_per_node)
                    if item.name in names:
                        raise BadFieldError("name", item.name, "a name that no earlier row uses")
                except ValueError as error:
                    skipped.append(Skipped(line, str(error)))
                else:
                    names.add(item.name)
                    found.append(item)
        except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError, csv.Error, OSError) as error:
            raise BatonError(f"{path} cannot be read to its end: {error}; check that the file is complete") from None
    if not found:
        why = (
            f"; first of {len(skipped):,} invalid rows: line {skipped[0].line}, {skipped[0].reason}" if skipped else ""
        )
        raise BatonError(f"{path} has no usable row{why}")
    return found, skipped


def _opened(path: Path) -> io.TextIOBase:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise BatonError(f"{path} cannot be opened: {error.strerror or error}") from None


def _rows(path: Path, stream: Iterable[str]) -> tuple[list[str] | None, Iterator[tuple[int, Row | str]]]:
    """The header (None for JSON lines) and the numbered rows; a string instead of a row describes the mistake in it."""
    if path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
        return None, _json_rows(stream)
    reader = csv.reader(stream)
    header = [column.strip() for column in next(reader, [])]
    if not header:
        raise BatonError(f"{path} is empty; expected a header line with column names")
    return header, _csv_rows(reader, header)


def _csv_rows(reader: Any, header: Sequence[str]) -> Iterator[tuple[int, Row | str]]:
    for values in reader:
        if not values:
            continue
        if len(values) != len(header):
            yield reader.line_num, f"the row has {len(values)} columns and the header {len(header)}"
        else:
            yield reader.line_num, dict(zip(header, values, strict=True))


def _json_rows(stream: Iterable[str]) -> Iterator[tuple[int, Row | str]]:
    for line, text in enumerate(stream, start=1):
        if not text.strip():
            continue
        try:
            row = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            yield line, f"not JSON ({error})"
            continue
        yield line, row if isinstance(row, dict) else f"expected an object, got {text.strip()[:40]!r}"


def _format_of(
    path: Path, header: list[str] | None, form: str | None, formats: Mapping[str, TraceFormat[Item]]
) -> TraceFormat[Item]:
    if header is None:
        return formats[form or "baton"]
    columns = set(header)
    for name, candidate in formats.items():
        if form not in (None, name) or not candidate.required <= columns:
            continue
        unknown = sorted(columns - candidate.allowed) if candidate.allowed is not None else []
        if not unknown:
            return candidate
        hint = did_you_mean(unknown[0], candidate.allowed or (), lead="; ")
        raise BatonError(f"{path}, line 1: no field {unknown[0]!r} in a {name} trace{hint}")
    if form is not None:
        missing = ", ".join(sorted(formats[form].required - columns))
        raise BatonError(f"{path}, line 1: not a {form} trace, the header lacks {missing}")
    wanted = "; ".join(f"{name}: {', '.join(sorted(candidate.required))}" for name, candidate in formats.items())
    shown = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
    raise BatonError(f"{path}, line 1: the columns {shown} match no known format ({wanted})")
