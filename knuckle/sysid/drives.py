"""What drives a simulation of a recording: controls, or measured torques turned into those of motors."""

from __future__ import annotations

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.draft import Draft
from knuckle.sysid.findings import Report, listed
from knuckle.sysid.recording import Recording

DRIVES = ("control", "tau")  # channels that drive a simulation rather than being compared with it


def drive_channel(recording: Recording) -> str | None:
    """Controls where there are some, else measured torques."""
    return next((key for key in DRIVES if key in recording.channels), None)


def controls_of(model: Model, recording: Recording) -> np.ndarray:
    """Controls over time (sample, nu); zero where the recording has neither controls nor torques."""
    key = drive_channel(recording)
    if key is None:
        return np.zeros((len(recording), model.nu))
    if key == "tau":
        return _of_motors(model, recording)
    values = recording[key].values
    if values.shape[1] != model.nu:
        raise ValueError(
            f"recording {recording.name!r}: {key} has {values.shape[1]} entries, the model {model.nu} actuators"
        )
    return values


def _of_motors(model: Model, recording: Recording) -> np.ndarray:
    """Controls with which motors do the measured joint torques; a constant bias of a motor comes on top."""
    tau, acts = recording["tau"], model.actuators
    if tau.values.shape[1] != model.nv:
        raise ValueError(
            f"recording {recording.name!r}: tau has {tau.values.shape[1]} entries, the model nv {model.nv}"
        )
    dofs, motors = np.array(acts.entry_dof, int), np.array(acts.entry_actuator, int)
    factor = np.asarray(acts.gear) * np.asarray(acts.gain)[motors]
    plain = (factor != 0) & ~np.asarray(acts.bias)[motors, 1:].any(axis=1)
    plain &= (np.bincount(dofs, minlength=model.nv)[dofs] == 1) & (np.bincount(motors, minlength=model.nu)[motors] == 1)
    driven = np.isin(np.arange(model.nv), dofs[plain])
    lost = (np.where(tau.valid, tau.values, 0.0) != 0).any(axis=0) & ~driven
    if lost.any():
        names = listed(np.array(tau.names, object)[lost])
        raise ValueError(
            f"recording {recording.name!r}: torques of {names} were measured, but the model has no motor there that "
            "could do them (one that turns its control into force, one to a joint; a servo does not): give such "
            "motors to the model, or controls to the recording, or leave these torques out"
        )
    control = np.zeros((len(recording), model.nu))
    control[:, motors[plain]] = tau.values[:, dofs[plain]] / factor[plain]
    return control


def drives(model: Model, channel: str, entry: int) -> bool:
    """Whether an entry of a channel moves the robot: a control, or the torque of a joint with an actuator."""
    return channel == "control" or (channel == "tau" and entry in model.actuators.entry_dof)


def check_drives(draft: Draft, report: Report) -> None:
    """A robot with actuators, and a log that does not say what drove it."""
    model = draft.model
    if model.nu and not any(key in draft.values for key in DRIVES):
        detail = "neither controls nor torques are in the log: a fit takes all controls as 0"
        draft.say(
            report, "not driven", f"control {listed(model.actuators.names, 6)}", len(draft.time), "suspect", detail
        )
