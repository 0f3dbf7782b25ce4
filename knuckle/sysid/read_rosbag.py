"""Bags of ROS 1 (.bag) and ROS 2 (.db3, or the folder with metadata.yaml)."""

from __future__ import annotations

from pathlib import Path

from knuckle.sysid.expansion import check_bag, check_compressed_file, check_database, check_mcap
from knuckle.sysid.messages import Messages
from knuckle.sysid.raw import Run, check_size, need


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    check_size(path, sum(file.stat().st_size for file in files), max_bytes)
    for file in files:
        _check_expansion(file, max_bytes)
    highlevel = need("rosbags.highlevel", path, "ROS bags")
    typesys = need("rosbags.typesys", path, "ROS bags")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)  # for bags that do not hold their message types
    messages = Messages(path, skip, max_bytes)
    with highlevel.AnyReader([path], default_typestore=store) as reader:
        chosen = [c for c in reader.connections if not skip(c.topic)]
        for connection, log_time, data in reader.messages(connections=chosen):
            if not _known(connection.msgtype):
                messages.unread[connection.topic, connection.msgtype] += 1
                continue
            messages.count(len(data))
            messages.add(connection.topic, connection.msgtype, log_time, reader.deserialize(data, connection.msgtype))
    return [messages.run()]


def _check_expansion(file: Path, max_bytes: int) -> None:
    """Refuse a file of a bag that unpacks to more than the limit."""
    with file.open("rb") as opened:
        first = opened.read(16)
    if first.startswith(b"#ROSBAG"):
        check_bag(file, max_bytes)
    elif first.startswith(b"SQLite format 3"):
        check_database(file, max_bytes)
    elif first.startswith(b"\x89MCAP"):
        check_mcap(file, max_bytes)
    elif file.suffix == ".zstd":
        check_compressed_file(file, max_bytes)


def _known(kind: str) -> bool:
    """Images and point clouds are not unpacked."""
    return kind.split("/")[0] in ("sensor_msgs", "geometry_msgs", "tf2_msgs", "tf", "nav_msgs", "std_msgs") and not any(
        word in kind for word in ("Image", "Cloud", "Scan", "Grid")
    )
