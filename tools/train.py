"""Train the transformer of chapters/training.md and keep its weights; takes a few minutes."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attnmath._sequences import SEED, STEPS, TRAINED, batch, first, save, solved, steps, trained  # noqa: E402

rng, losses = np.random.default_rng(SEED), []
for _, loss, state in steps(first(rng), rng):
    losses.append(float(loss))
    if state.t % (STEPS // 10) == 0:
        print(f"step {state.t}: loss {np.mean(losses[-100:]):.5f}", flush=True)
save(state.model, losses[:100])
share = solved(trained()[0], batch(np.random.default_rng(2), 1000, held_out=True)).mean()
print(f"{TRAINED.name}: {TRAINED.stat().st_size} bytes, solves {share:.1%} of what it has not seen")
