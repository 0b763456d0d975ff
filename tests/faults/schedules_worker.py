# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that go through the same schedules: prints a digest of what each has left."""

import hashlib
import sys
import traceback

import numpy as np

from npu_keras import distribute

engine = distribute.engine(timeout_s=120)  # before TensorFlow makes its first tensor

from schedules import schedule  # noqa: E402
from trainers import Host  # noqa: E402

TOGETHER = {"is_distributed": True}
HOSTS = {
    "mpi": [
        Host("keras", "saturation", accumulate=3, **TOGETHER),
        Host("tf_keras legacy", **TOGETHER),
    ],
    "collective": [Host("keras", every=2, **TOGETHER)],
}[engine.name]
EACH = 8

for position, host in enumerate(HOSTS):
    try:
        trainer = host.trainer(engine.rank)
        for seed in range(position * EACH, (position + 1) * EACH):
            saturation = host.mode == "saturation"
            planned = schedule(1000 + seed, saturation=saturation, size=engine.size)
            left = trainer.check(planned, engine.size)
            digest = hashlib.sha256(
                b"".join(np.asarray(each).tobytes() for each in trainer.common(left))
            ).hexdigest()
            print("left", host.name, planned.seed, digest, flush=True)
    except Exception:
        traceback.print_exc()
        sys.exit(f"{host.name}, rank {engine.rank}")
