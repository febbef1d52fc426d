"""Train the transformer of chapters/training.md and keep its weights; takes a few minutes."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attnmath._sequences import STEPS, TRAINED, batch, run, save, solved, trained  # noqa: E402

losses = []
for _, loss, state in run():
    losses.append(float(loss))
    if state.t % (STEPS // 10) == 0:
        print(f"step {state.t}: loss {np.mean(losses[-100:]):.5f}", flush=True)
save(state.model, losses[:100])
share = solved(trained()[0], batch(np.random.default_rng(2), 1000, held_out=True)).mean()
print(f"{TRAINED.name}: {TRAINED.stat().st_size} bytes, solves {share:.1%} of what it has not seen")
