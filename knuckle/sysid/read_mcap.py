"""MCAP files with ROS 2 or JSON messages."""

from __future__ import annotations

import json
from pathlib import Path

from knuckle.sysid.expansion import check_mcap
from knuckle.sysid.messages import Messages
from knuckle.sysid.raw import Run, TooLarge, check_size, need


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    check_size(path, path.stat().st_size, max_bytes)
    reader = need("mcap.reader", path, "MCAP files")
    ros2 = need("mcap_ros2.decoder", path, "MCAP files with ROS 2 messages").DecoderFactory()
    check_mcap(path, max_bytes)
    messages = Messages(path, skip, max_bytes)
    with path.open("rb") as file:
        try:
            _collect(messages, reader.SeekingReader(file, record_size_limit=max_bytes), ros2)
            return [messages.run()]
        except TooLarge:
            raise
        except Exception as error:
            file.seek(0)
            again = Messages(path, skip, max_bytes)
            return [_salvaged(path, again, reader.NonSeekingReader(file, record_size_limit=max_bytes), ros2, error)]


def _salvaged(path: Path, messages: Messages, reader, ros2, reason: Exception) -> Run:
    """What can be read from the beginning of a file whose end is missing or broken; else the first error."""
    try:
        _collect(messages, reader, ros2)
    except TooLarge:
        raise
    except Exception as error:
        reason = error
    try:
        run = messages.run()
    except Exception as error:
        raise reason from error
    detail = f"{type(reason).__name__}: {reason}; read up to there"
    return Run(run.name, run.streams, run.rate, (*run.notes, ("broken file", path.name, 1, detail)))


def _collect(messages: Messages, reader, ros2) -> None:
    for schema, channel, message in reader.iter_messages(log_time_order=False):
        kind = schema.name if schema is not None else ""
        if messages.skip(channel.topic):
            continue
        messages.count(len(message.data))
        if channel.message_encoding == "json":
            messages.add(channel.topic, kind, message.log_time, json.loads(message.data), is_json=True)
            continue
        decode = ros2.decoder_for(channel.message_encoding, schema)
        if decode is None:
            messages.unread[channel.topic, f"{kind} ({channel.message_encoding})"] += 1
        else:
            messages.add(channel.topic, kind, message.log_time, decode(message.data))
