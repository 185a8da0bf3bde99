"""Does a training that is killed at any moment end like one that nobody disturbs?

    python checks/kills.py --write checks/kills-<date>.txt

Each program trains for a second or two, is killed at random moments (SIGKILL) and resumed, and is
killed again, until it is through. Then every file but config.json is compared, bit for bit, with
that of a run without kills: weights and optimizer in checkpoint.pt, backbone.pt, embeddings.npz,
metrics.jsonl; times are left out.
"""

import signal
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import COMMANDS, EPOCHS, differences

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
from common import progress  # noqa: E402

A_RUN = 5  # kills of one run
MOMENTS = ["before a checkpoint", "in training", "after training"]


# -------------------------------------------------------------------------------------- the killing
def moment(folder: Path) -> str:
    """One of MOMENTS, from what a killed run has left in its folder."""
    memory = folder / "memory"  # of sparse_coding.py, until it ends
    checkpoint = folder / "checkpoint.pt"
    if memory.exists():
        if any(memory.iterdir()):
            return MOMENTS[1]
        return MOMENTS[0]
    if (folder / "results.json").exists():
        return MOMENTS[2]
    if not checkpoint.exists():
        return MOMENTS[0]
    done = len(common.load_checkpoint(checkpoint)["log"])
    if done < EPOCHS:
        return MOMENTS[1]
    return MOMENTS[2]


def killed_run(program: str, root: Path, folder: str, most: int, longest: float, draw):
    """Train, kill and resume until the run ends; after `most` kills it is left alone.

    longest: seconds until a kill, at most; draw: a numpy generator
    → the moments of the kills, and what the program said where it did not go on
    """
    command = f"{COMMANDS[program]} --out {folder}"
    moments = []
    for _ in range(most):
        process = harness.start(command, root, harness.note_always)
        time.sleep(draw.uniform(0, longest))
        process.kill()
        process.join()
        if process.exitcode == 0:  # it was through
            return moments, ""
        if process.exitcode != -signal.SIGKILL:
            return moments, (root / "err.txt").read_text()
        moments.append(moment(root / folder))
        if (root / folder / "config.json").exists():
            command = f"{program} --resume {folder}"
    ending = harness.run(command, root, before=harness.note_always)
    if ending.code != 0:
        return moments, ending.err
    return moments, ""


def of_program(program: str, root: Path, kills: int, draw) -> dict:
    """A row of the table: so many kills of a program, over several runs."""
    whole = f"{COMMANDS[program]} --out whole-{program}"
    seconds = harness.must(whole, root, before=harness.note_always).seconds
    moments, failures = [], []
    runs = equal = 0
    while len(moments) < kills:
        folder = f"{program}-{runs}"
        most = min(A_RUN, kills - len(moments))
        hit, failure = killed_run(program, root, folder, most, 2 * seconds / A_RUN, draw)
        moments += hit
        runs += 1
        if failure:
            failures.append(failure)
            print(f"{program}: {failure}", end="")
            continue
        differing = differences(root / folder, root / f"whole-{program}")
        if differing:
            print(f"{program}: {folder} differs in {', '.join(differing[:5])}")
        else:
            equal += 1
    row = {"program": program, "kills": len(moments)}
    for name in MOMENTS:
        row[name] = moments.count(name)
    return row | {"resumed": len(moments) - len(failures), "runs": runs, "equal": equal}


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = harness.parser("kills.py", __doc__)
    flags.add_argument("--kills", type=int, default=20, help="of each program (default: 20)")
    flags.add_argument("--programs", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    args = flags.parse_args(argv)
    lines = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        harness.write_data(root)
        for i, program in enumerate(progress(args.programs, "programs")):
            draw = np.random.default_rng([args.seed, i])
            row = of_program(program, root, args.kills, draw)
            print(f"{program}: {row['kills']} kills, {row['equal']} of {row['runs']} runs equal")
            if not lines:
                lines.append(list(row))
            lines.append([str(cell) for cell in row.values()])
    harness.tell(args.write, "Killed and resumed", interpret.markdown(lines))


if __name__ == "__main__":
    common.launch(main)
