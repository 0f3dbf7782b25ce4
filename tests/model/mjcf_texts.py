"""MJCF that tests are written in."""

BALL = '<geom size="0.1" density="500"/>'
ARM = f"""
<body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0"/>{BALL}<site name="elbow_site" pos="0 0 -0.5"/>
  <body name="lower" pos="0 0 -0.5"><joint name="elbow" axis="0 1 0"/>{BALL}<site name="tip" pos="0 0 -0.4"/></body>
</body>"""


def mjcf(body: str = ARM, rest: str = "", before: str = "") -> str:
    return f'<mujoco model="test">{before}<worldbody>{body}</worldbody>{rest}</mujoco>'
