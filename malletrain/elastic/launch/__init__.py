"""How a worker starts: what a pilot runs around the researcher's script, and the first stage of a session.

`launcher` (`python -m malletrain.elastic.launch`) runs in every pilot and starts the script; `restart` is its mode
for unchanged scripts, `item_worker` that for independent items; `array_resubmit` submits more pilots as the user.
These four use the standard library only, so that a pilot starts quickly. `worker_start` is what `Session` does before
it joins a world.
"""

#: How long a worker that has left waits to be ended: the daemon requeues its task, which must still run for that.
REQUEUE_TIMEOUT_S = 20.0

#: Exit status of a script that SIGTERM ended (128 + 15), and of a worker that left in order.
TERMINATED_STATUS = 143

#: Exit status of a pilot that no daemon took: `malletrain.domain.pilot_life` has the same.
NO_DAEMON_STATUS = 118
