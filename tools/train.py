"""Train the transformer of chapters/training.md and keep its weights; takes a few minutes."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attnmath.book.sequences import (  # noqa: E402
    TRAINING_SEED,
    TRAINING_STEPS,
    WEIGHTS_FILE,
    batch,
    first,
    save,
    solved,
    trained,
    training_steps,
)

rng, losses = np.random.default_rng(TRAINING_SEED), []
for _, loss, state in training_steps(first(rng), rng):
    losses.append(float(loss))
    if state.t % (TRAINING_STEPS // 10) == 0:
        print(f"step {state.t}: loss {np.mean(losses[-100:]):.5f}", flush=True)
save(state.model, losses[:100])
share = solved(trained()[0], batch(np.random.default_rng(2), 1000, held_out=True)).mean()
print(f"{WEIGHTS_FILE.name}: {WEIGHTS_FILE.stat().st_size} bytes, solves {share:.1%} of what it has not seen")
