"""A survey of random contact scenes: how they are drawn, run and judged (see scripts/check_contact_scenes.py)."""
