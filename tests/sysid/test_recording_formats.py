"""One motion in every format reads as the same recording."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import numpy as np
import pytest

from knuckle import robots
from knuckle.sysid import RecordingError, read_recordings
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL = pendulum()
T, Q, QD = swing(4.0)
START = 1_700_000_000_000_000_000


def check(run, atol: float = 0.0):
    np.testing.assert_allclose(run.time, T, atol=max(atol, 1e-9), rtol=0)
    np.testing.assert_allclose(run.q, Q, atol=atol, rtol=0)
    np.testing.assert_allclose(run.qd, QD, atol=atol, rtol=0)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", ", "])
@pytest.mark.parametrize("before", ["", "# made by a robot\n# on a day\n\n", "// header\n"])
def test_csv(delimiter: str, before: str, tmp_path: Path):
    table = {"time[s]": T, "shoulder": Q[:, 0], "elbow": Q[:, 1], "shoulder_vel": QD[:, 0], "elbow_vel": QD[:, 1]}
    check(read_recordings(write_csv(tmp_path / "log.csv", table, delimiter, before), MODEL)[0])


def test_csv_with_a_commented_header_as_numpy_writes_it(tmp_path: Path):
    table = columns(T, Q, QD)
    np.savetxt(
        tmp_path / "log.txt", np.column_stack(list(table.values())), header=",".join(table), delimiter=",", fmt="%.17g"
    )
    check(read_recordings(tmp_path / "log.txt", MODEL)[0])


def test_csv_with_row_numbers_as_pandas_writes_it(tmp_path: Path):
    got = read_recordings(write_csv(tmp_path / "log.csv", {"": np.arange(len(T)), **columns(T, Q, QD)}), MODEL)
    check(got[0])
    assert len(got.report.of("row numbers")) == 1


def test_csv_with_decimal_commas_quotes_empty_cells_words_and_dates(tmp_path: Path):
    lines = ['"time";"shoulder [deg]";elbow']
    stamps = np.datetime64("2024-05-06T07:08:09.000") + np.arange(100) * np.timedelta64(10, "ms")
    for i, stamp in enumerate(stamps):
        lines.append(f"{stamp};{i / 10:.1f};{'' if i == 3 else 'oops' if i == 7 else i / 100}".replace(".", ","))
        lines[-1] = lines[-1].replace(",", ".", 1)
    lines.append("2024-05-06T07:08:10.000;1")
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    got = read_recordings(tmp_path / "log.csv", MODEL)
    np.testing.assert_allclose(got[0].time, np.arange(100) / 100, atol=1e-9)
    assert got[0].q is not None
    np.testing.assert_allclose(got[0].q[:, 0], np.radians(np.arange(100) / 10), atol=1e-12)
    assert np.flatnonzero(~got[0]["q"].valid[:, 1]).tolist() == [3, 7]
    assert {"decimal comma", "not a number", "broken rows"} <= {f.what for f in got.report}
    assert "'oops' in line 9" in got.report.of("not a number")[0].detail


def test_csv_with_seconds_and_nanoseconds_apart(tmp_path: Path):
    stamps = START + np.round(T * 1e9).astype(np.int64)
    table = {"header.stamp.sec": stamps // 10**9, "header.stamp.nanosec": stamps % 10**9} | columns(T, Q, QD)
    del table["time [s]"]
    check(read_recordings(write_csv(tmp_path / "log.csv", table), MODEL)[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line of data"),
        ("# only a comment\n", "no line of data"),
        ("time,shoulder,elbow\n", "a header, and no row of data after it"),
        ("time,shoulder,shoulder\n0,1,2\n1,2,3\n", "two columns have the same name: shoulder"),
        ("time,shoulder\n0,1\n1,2,3\n2,3,4\n3,4,5\n", "line 3: 3 cells where the header has 2, and 2 more such rows"),
        ("time,shoulder\nx,1\ny,2\nz,3\n", "no place for 1 of 2 columns: time \\(text\\)"),
        ("time,shoulder\n0,1\n", "fewer than two samples"),
        ("time [kg],shoulder\n0,1\n1,2\n", "unit 'kg' is none of time"),
        ("time,stamp,shoulder\n0,0,1\n1,1,2\n", "several columns of times: time, stamp"),
    ],
)
def test_tables_that_say_too_little_are_refused(text: str, said: str, tmp_path: Path):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(RecordingError, match=said):
        read_recordings(tmp_path / "log.csv", MODEL)


def test_npz_of_arrays_and_of_named_columns(tmp_path: Path):
    np.savez(tmp_path / "a.npz", allow_pickle=False, time=T, q=Q, qd=QD.T, fps=np.array(250.0), note=np.array("x"))
    check(read_recordings(tmp_path / "a.npz", MODEL)[0])
    table = np.column_stack([T, Q, QD])
    names = np.array(["time", "shoulder", "elbow", "shoulder_vel", "elbow_vel"])
    np.savez(
        tmp_path / "b.npz",
        allow_pickle=False,
        **{"a/log": table, "a/log#cols": names, "b/log": table, "b/log#cols": names},
    )
    got = read_recordings(tmp_path / "b.npz", MODEL)
    assert [run.name for run in got] == ["b/a/log", "b/b/log"]
    check(got[0])
    check(got[1])
    records = np.zeros(len(T), [("t", float), ("qpos", float, 2), ("qvel", float, 2)])
    records["t"], records["qpos"], records["qvel"] = T, Q, QD
    np.savez(tmp_path / "c.npz", allow_pickle=False, log=records)
    check(read_recordings(tmp_path / "c.npz", MODEL)[0])
    np.savez(tmp_path / "d.npz", allow_pickle=False, q=Q, qd=QD, fps=np.array(250.0))
    check(read_recordings(tmp_path / "d.npz", MODEL)[0])


def test_what_the_simulator_writes_is_read(tmp_path: Path):
    from typer.testing import CliRunner

    from knuckle.cli import app

    outcome = CliRunner().invoke(app, ["simulate", "cartpole", "--time", "0.5", "--out", str(tmp_path / "run")])
    assert outcome.exit_code == 0, outcome.output
    model = robots.load("cartpole")
    for name in ("trajectory.npz", "trajectory.csv"):
        got = read_recordings(tmp_path / "run" / name, model)
        assert set(got[0].channels) == {"q", "qd", "control"}, got.report
        assert [f for f in got.report if f.action != "note"] == []


def test_hdf5_by_folders_and_attributes(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "log.h5", "w") as file:
        for i in range(2):
            run = file.create_group(f"data/demo_{i}")
            run["time"], run["obs/qpos"], run["obs/qvel"] = T, Q, QD
        file["self"] = h5py.SoftLink("/data")
    got = read_recordings(tmp_path / "log.h5", MODEL)
    assert [run.name for run in got] == ["log/data/demo_0", "log/data/demo_1"]
    check(got[0])
    with h5py.File(tmp_path / "aloha.hdf5", "w") as file:
        file.attrs["rate"] = 250.0
        file["observations/qpos"], file["observations/qvel"] = Q, QD
        file["observations/images"] = np.zeros((len(T), 2, 2, 3), np.uint8)
    check(read_recordings(tmp_path / "aloha.hdf5", MODEL, ignore="observations/images*")[0])
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file["log"] = np.column_stack([T, Q, QD])
        file["log"].attrs["columns"] = ["t", "shoulder", "elbow", "shoulder_vel", "elbow_vel"]
    check(read_recordings(tmp_path / "table.h5", MODEL)[0])


def test_parquet_with_lists_dates_and_episodes(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stamps = pyarrow.array(START + np.round(T * 1e9).astype(np.int64)).cast(pyarrow.timestamp("ns"))
    table = pyarrow.table({"timestamp": stamps, "observation.state": list(Q), "velocity": list(QD)})
    parquet.write_table(table, tmp_path / "log.parquet")
    check(read_recordings(tmp_path / "log.parquet", MODEL)[0])
    half = len(T) // 2
    nested = [{"shoulder": float(a), "elbow": float(b)} for a, b in Q]
    table = pyarrow.table({"t": T, "q": nested, "episode_index": np.repeat([0, 1], half), "task": ["x"] * len(T)})
    parquet.write_table(table, tmp_path / "runs.parquet")
    got = read_recordings(tmp_path / "runs.parquet", MODEL, ignore="task")
    assert [len(run) for run in got] == [half, half]
    np.testing.assert_array_equal(got[1].q, Q[half:])


def json_messages(path: Path):
    """Joint states with a header, positions only of a marker, and an image that cannot be read."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file, chunk_size=20_000)
        writer.start()
        schema = writer.register_schema("sensor_msgs/JointState", "jsonschema", b"{}")
        image = writer.register_schema("foxglove.CompressedImage", "protobuf", b"")
        topics = [
            writer.register_channel(t, e, s)
            for t, e, s in (("/joint_states", "json", schema), ("/marker", "json", 0), ("/camera", "protobuf", image))
        ]
        for i, t in enumerate(T):
            stamp = START + round(t * 1e9)
            state = {
                "header": {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}},
                "name": ["shoulder", "elbow"],
            }
            state |= {"position": Q[i].tolist(), "velocity": QD[i].tolist(), "effort": []}
            writer.add_message(topics[0], stamp, json.dumps(state).encode(), stamp)
            if i % 5 == 0:
                marker = {"tip": {"x": t, "y": 0.0, "z": 2 * t}}
                writer.add_message(topics[1], stamp + 1_000_000, json.dumps(marker).encode(), stamp)
            if i % 100 == 0:
                writer.add_message(topics[2], stamp, b"jpeg", stamp)
        writer.finish()


def test_mcap_with_json(tmp_path: Path):
    pytest.importorskip("mcap")
    json_messages(tmp_path / "log.mcap")
    got = read_recordings(tmp_path / "log.mcap", MODEL)
    check(got[0], atol=1e-12)
    marker = got[0]["point/tip"]
    seen = marker.valid[:, 0]
    assert np.mean(seen) > 0.98
    np.testing.assert_allclose(marker.values[seen, 0], T[seen] - 1e-3, atol=1e-9)  # linear in time, 1 ms late
    assert [f.place for f in got.report if "CompressedImage" in f.what] == ["/camera"]
    assert "own clock" in {f.what for f in got.report}
    check(read_recordings(tmp_path / "log.mcap", MODEL, ignore=["/marker*", "/camera"])[0], atol=1e-12)


def test_the_beginning_of_a_truncated_mcap_is_read(tmp_path: Path):
    pytest.importorskip("mcap")
    json_messages(tmp_path / "log.mcap")
    data = (tmp_path / "log.mcap").read_bytes()
    (tmp_path / "cut.mcap").write_bytes(data[: len(data) // 2])
    got = read_recordings(tmp_path / "cut.mcap", MODEL)
    assert len(got.report.of("broken file")) == 1 and 100 < len(got[0]) < len(T)
    np.testing.assert_allclose(got[0].q, Q[: len(got[0])], atol=1e-12)


def test_mcap_with_ros2(tmp_path: Path):
    pytest.importorskip("mcap_ros2")
    from mcap_ros2.writer import Writer

    time = "================\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
    header = f"================\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{time}"
    definition = (
        f"std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n{header}"
    )
    with (tmp_path / "log.mcap").open("wb") as file, Writer(file) as writer:
        schema = writer.register_msgdef("sensor_msgs/msg/JointState", definition)
        for i, t in enumerate(T):
            stamp = START + round(t * 1e9)
            message = {
                "header": {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}, "frame_id": ""},
                "name": ["elbow", "shoulder"],
                "position": Q[i, ::-1].tolist(),
                "velocity": QD[i, ::-1].tolist(),
                "effort": [],
            }
            writer.write_message("/joint_states", schema, message, stamp + 5_000_000, stamp)
    check(read_recordings(tmp_path / "log.mcap", MODEL)[0])


def bag_messages(store, write):
    """Joint states, commands without a header, poses of the tip relative to the world and of a camera to the tip."""
    kinds = store.types
    state, array = kinds["sensor_msgs/msg/JointState"], kinds["std_msgs/msg/Float64MultiArray"]
    header, stamp_type = kinds["std_msgs/msg/Header"], kinds["builtin_interfaces/msg/Time"]
    tf, transform = kinds["tf2_msgs/msg/TFMessage"], kinds["geometry_msgs/msg/TransformStamped"]
    vector, quaternion = kinds["geometry_msgs/msg/Vector3"], kinds["geometry_msgs/msg/Quaternion"]
    layout = kinds["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    extra = {"seq": 0} if "seq" in header.__dataclass_fields__ else {}
    for i, t in enumerate(T):
        stamp = START + round(t * 1e9)
        head = header(stamp=stamp_type(sec=stamp // 10**9, nanosec=stamp % 10**9), frame_id="world", **extra)
        write("/joint_states", state(head, ["shoulder", "elbow"], Q[i], QD[i], np.zeros(0)), stamp + 10**10)
        if i % 2 == 0:
            write("/commands", array(layout, np.array([t])), stamp + 10**10)
        if i % 4 == 0:
            pose = kinds["geometry_msgs/msg/Transform"](vector(t, 0.0, 1.0), quaternion(0.0, 0.0, 0.0, 1.0))
            inner = header(stamp=head.stamp, frame_id="tip", **extra)
            write("/tf", tf([transform(head, "tip", pose), transform(inner, "camera", pose)]), stamp + 10**10)


@pytest.mark.parametrize("version", [1, 2])
def test_ros_bags(version: int, tmp_path: Path):
    pytest.importorskip("rosbags")
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC if version == 1 else Stores.ROS2_HUMBLE)
    if version == 1:
        store.register(get_types_from_msg("geometry_msgs/TransformStamped[] transforms", "tf2_msgs/msg/TFMessage"))
    path = tmp_path / ("log.bag" if version == 1 else "log")
    with rosbag1.Writer(path) if version == 1 else rosbag2.Writer(path, version=9) as writer:
        connections = {}

        def write(topic, message, log_time):
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            data = store.serialize_ros1(message, kind) if version == 1 else store.serialize_cdr(message, kind)
            writer.write(connections[topic], log_time, data)

        bag_messages(store, write)
    mapping = {"/commands": "command"}
    got = read_recordings(path, MODEL, columns=mapping)
    check(got[0])
    seen = got[0]["pose/tip"].valid.all(axis=1)
    assert np.mean(seen) > 0.98
    np.testing.assert_allclose(got[0].poses["tip"][seen, 0], T[seen], atol=1e-9)
    np.testing.assert_array_equal(got[0].poses["tip"][seen, 3:], np.tile([1.0, 0, 0, 0], (seen.sum(), 1)))
    assert [f.place for f in got.report.of("relative pose")] == ["/tf/camera"]
    assert len(got.report.of("two clocks")) == 1
    command = got[0]["command"]
    assert np.abs(command.values[command.valid[:, 0], 0] - T[command.valid[:, 0]]).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "package"), [("a.h5", "h5py"), ("a.parquet", "pyarrow"), ("a.mcap", "mcap"), ("a.bag", "rosbags")]
)
def test_a_missing_package_says_what_to_type(name: str, package: str, tmp_path: Path, monkeypatch):
    (tmp_path / name).write_bytes(b"\0" * 64)
    real = builtins.__import__
    import knuckle.sysid.raw as raw

    def absent(module: str):
        if module.split(".")[0] == package:
            raise ImportError(module)
        return real(module)

    monkeypatch.setattr(raw, "import_module", absent)
    with pytest.raises(RecordingError, match=r"pip install 'knuckle\[data\]'"):
        read_recordings(tmp_path / name, MODEL)


def test_a_folder_of_logs_and_files_that_are_not_there(tmp_path: Path):
    for name in ("b.csv", "a.csv"):
        write_csv(tmp_path / name, columns(T, Q, QD))
    assert [run.name for run in read_recordings(tmp_path, MODEL)] == ["a", "b"]
    assert [run.name for run in read_recordings([tmp_path / "b.csv", tmp_path / "a.csv"], MODEL)] == ["b", "a"]
    with pytest.raises(RecordingError, match="there is no such file"):
        read_recordings(tmp_path / "c.csv", MODEL)
    (tmp_path / "x.mat").write_bytes(b"MATLAB")
    with pytest.raises(RecordingError, match="format not known"):
        read_recordings(tmp_path / "x.mat", MODEL)
