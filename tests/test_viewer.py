"""Pictures: what is drawn is where it should be, and drawing changes nothing global."""

import matplotlib as mpl
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.viewer.plots import _coordinate_rows, motion_figure
from knuckle.viewer.solids import camera, shaded, solids


def ball_on_slider(**options) -> kn.Model:
    shape = kn.shapes.sphere(0.3, position=(0.0, 0.0, 0.5))
    return kn.build([kn.Link("ball", joints=kn.prismatic("x"), mass=1.0, shapes=shape, **options)])


def motion_of(model: kn.Model, steps: int = 6) -> kn.Trajectory:
    qd = 0.1 * np.ones((steps, model.nv))
    q = np.tile(model.reference, (steps, 1))
    return kn.Trajectory(0.01 * np.arange(steps), q, qd, np.zeros((steps, model.nu)))  # type: ignore[arg-type]


def test_a_camera_has_right_handed_unit_axes():
    view = camera((0.7, 0.3))
    axes = np.stack([view.right, view.up, view.eye])
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-15)
    assert np.linalg.det(axes) == pytest.approx(1)
    assert camera((-np.pi / 2, 0.0)).picture(np.array([1.0, 5.0, 2.0])) == pytest.approx([1.0, 2.0])


def test_a_shape_is_drawn_at_its_place_and_size():
    """The silhouette of a sphere is a disc; its hull of 160 points is less than 2 % smaller."""
    turned, moved = np.array([[[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]]), np.array([[2.0, 0, 0]])  # its z axis along x
    triangles, colors = shaded(solids(ball_on_slider()), turned, moved, camera((-np.pi / 2, 0.0)), fade=0.0)
    corners = triangles.reshape(-1, 2)
    np.testing.assert_allclose(corners.min(axis=0), [2.2, -0.3], atol=0.02)
    np.testing.assert_allclose(corners.max(axis=0), [2.8, 0.3], atol=0.02)
    assert len(colors) == len(triangles) and colors.min() >= 0 and colors.max() <= 1


def test_what_looks_away_is_left_out_and_fading_ends_in_white():
    bodies = solids(ball_on_slider())
    poses = np.eye(3)[None], np.zeros((1, 3))
    triangles, colors = shaded(bodies, *poses, camera((0.0, 0.5)), fade=1.0)
    assert 0.4 < len(triangles) / len(bodies[0].triangles) < 0.6
    np.testing.assert_allclose(colors, 1.0)


def test_links_without_shapes_become_sticks_to_their_children_or_through_their_mass():
    links = [
        kn.Link("a", joints=kn.revolute("y"), mass=1.0),
        kn.Link("b", "a", kn.revolute("y"), (0, 0, -0.5), mass=1.0, com=(0, 0, -0.2)),
    ]
    lowest = [body.points[:, 2].min() for body in solids(kn.build(links))]
    np.testing.assert_allclose(lowest, [-0.5, -0.4], atol=0.02)  # within the sticks' radius


def test_every_coordinate_is_drawn_once():
    links = [
        kn.Link("a", joints=kn.free(), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("b", "a", kn.planar(), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("c", "b", kn.ball(), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("d", "c", kn.prismatic(), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("e", "d", kn.revolute(), mass=1.0, inertia=(1, 1, 1)),
    ]
    model = kn.build(links)
    motion = motion_of(model)
    marked = kn.Trajectory(motion.time, np.tile(np.arange(model.nq), (6, 1)), motion.qd, motion.control)  # type: ignore[arg-type]
    rows = {row.label: [curve[1][0] for curve in row.curves] for row in _coordinate_rows(model, marked)}
    drawn = [value for label in ("angle [rad]", "position [m]", "quaternion") for value in rows[label]]
    assert sorted(drawn) == list(range(model.nq))


@pytest.mark.parametrize("model", [ball_on_slider(), robots.load("quadruped")], ids=["fixed", "floating"])
def test_a_figure_leaves_the_global_style_alone(model, tmp_path):
    before = dict(mpl.rcParams)
    motion = motion_of(model)
    figure = motion_figure(model, motion, {"total": np.ones(6)}, "title")
    figure.savefig(tmp_path / "motion.png", dpi=30)
    assert dict(mpl.rcParams) == before
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels[-1] == "energy [J]" and any("speed" in label for label in labels)
