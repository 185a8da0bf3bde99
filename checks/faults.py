"""Other faults: a kill at each write, Ctrl-C, a full disk, a read-only one, several processes.

    python checks/faults.py --write checks/faults-<date>.txt

After each the program has to end as it says, in one line and with its exit code, and the run has to
go on to the same files, bit for bit. For the disks root mounts a small file system in memory; who
is not root gets a line that says so.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import COMMANDS, SMALL, differences, note_always

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import common  # noqa: E402
import interpret  # noqa: E402
from common import progress  # noqa: E402

WRITES = {"open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree"}
SWEPT = ["simclr.py", "sae.py", "sparse_coding.py"]
IMAGES = [program for program in COMMANDS if program != "sparse_coding.py"]
STAGES = {  # of a training: the line of its output that begins it
    "epoch 1": "epochs done",
    "epoch 2": "epoch 1/",
    "evaluation": "evaluating",
    "a second experiment": "fig4: ",
}
SIZES = ["4k", "8k", "12k", "200k", "1m", "2m", "3m", "4m"]


# ----------------------------------------------------------------------------- what is asked of all
def command_of(program: str) -> str:
    """A training of two epochs."""
    return f"{COMMANDS[program]} --epochs 2"


def train_whole(programs: list[str], root: Path) -> None:
    """The runs that nobody disturbs, whole-<program>."""
    for program in programs:
        harness.must(f"{command_of(program)} --out whole-{program}", root, before=note_always)


def how_it_goes_on(program: str, root: Path, folder: str) -> str:
    """Resume a run, or begin it again where it has no config.json, to its end.

    → what is wrong with that, or how its files differ from the whole run's; "" where nothing is
    """
    command = f"{command_of(program)} --out {folder}"
    if (root / folder / "config.json").exists():
        command = f"{program} --resume {folder}"
    ending = harness.run(command, root, before=note_always)
    if ending.code != 0:
        return f"not resumed, exit code {ending.code}: {ending.err.strip()[-160:]}"
    differing = differences(root / folder, root / f"whole-{program}")
    if differing:
        return f"resumed, but differs in {', '.join(differing[:4])}"
    return ""


def how_it_ended(code: int | None, err: str, wanted: int) -> str:
    """What is wrong with a program's end, of which one line and an exit code were wanted; or ""."""
    lines = err.strip().splitlines() or [""]
    if code == wanted and len(lines) == 1 and lines[0]:
        return ""
    return f"exit code {code}, {len(lines)} lines, the last: {lines[-1][:160]}"


# ---------------------------------------------------------------------------- a kill at each write
def kill_at(number: int, after: bool, folder: str) -> None:
    """Have this process kill itself at its so-many-th change in a folder, counted from 0.

    after: count files that are opened alone; the file is there by then, a new one empty
    killed.txt tells which change it was.
    """
    count = itertools.count()

    def hook(event, args):
        if event not in WRITES or folder not in str(args[0]):
            return
        if after and event != "open":
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if next(count) != number:
            return
        if after:
            os.close(os.open(args[0], args[2]))
        Path("killed.txt").write_text(f"{event} {Path(args[0]).name}")
        os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kills_at_writes(program: str, root: Path) -> tuple[int, list[str]]:
    """Kill a training at each of its writes → how many there are, and what went wrong."""
    failures = []
    n = 0
    for after in False, True:
        when = "after" if after else "before"
        for number in itertools.count():
            folder = f"swept-{when}-{number}-{program}"

            def before(number=number, after=after, folder=folder):
                note_always()
                kill_at(number, after, folder)

            ending = harness.run(f"{command_of(program)} --out {folder}", root, before=before)
            if ending.code == 0:  # it has no more writes
                break
            n += 1
            wrong = how_it_goes_on(program, root, folder)
            if wrong:
                failures.append(f"{when} {(root / 'killed.txt').read_text()}: {wrong}")
    return n, failures


# ------------------------------------------------------------------------------------------- Ctrl-C
def interrupt(process, root: Path, line: str, delay: float) -> None:
    """Send SIGINT to a program a moment after it has printed a line, if it still runs."""
    while process.is_alive() and line not in (root / "out.txt").read_text():
        time.sleep(0.002)
    time.sleep(delay)
    if process.is_alive():
        os.kill(process.pid, signal.SIGINT)
    process.join()


def ctrl_c(program: str, stage: str, root: Path, draw) -> tuple[int, list[str]]:
    """Ctrl-C in a stage, twice; a run that had ended by then does not count."""
    failures = []
    n = 0
    for turn in range(2):
        folder = f"stopped-{turn}-{stage.replace(' ', '-')}-{program}"
        (root / "out.txt").write_text("")
        process = harness.start(f"{command_of(program)} --out {folder}", root, note_always)
        interrupt(process, root, STAGES[stage], draw.uniform(0, 0.05))
        if process.exitcode == 0:
            continue
        n += 1
        wrong = how_it_ended(process.exitcode, (root / "err.txt").read_text(), 130)
        wrong = wrong or how_it_goes_on(program, root, folder)
        if wrong:
            failures.append(f"{program}, {wrong}")
    return n, failures


def ctrl_c_of_readers(root: Path) -> tuple[int, list[str]]:
    """Ctrl-C while interpret.py and look.py measure, three times each."""
    z = np.random.default_rng(0).normal(size=(2000, 256)).astype(np.float32)
    np.save(root / "wide.npy", z)
    failures = []
    for program in ["tools/interpret.py", "tools/look.py"] * 3:
        (root / "out.txt").write_text("")
        process = harness.start(f"{program} wide.npy --out read", root)
        interrupt(process, root, "measuring", 0.05)
        wrong = how_it_ended(process.exitcode, (root / "err.txt").read_text(), 130)
        if wrong:
            failures.append(f"{program}, {wrong}")
    return 6, failures


def ctrl_c_in_loading(root: Path) -> tuple[int, list[str]]:
    """Ctrl-C while a training draws the built-in data, which takes some seconds."""
    command = f"simclr.py --dataset shapes {SMALL.partition('small')[2]} --out loading"
    failures = []
    for delay in 0.2, 0.5, 1.0:
        process = harness.start(command, root)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGINT)
        process.join()
        wrong = how_it_ended(process.exitcode, (root / "err.txt").read_text(), 130)
        if wrong:
            failures.append(wrong)
    return 3, failures


def ctrl_c_in_imports(root: Path) -> tuple[int, list[str]]:
    """Ctrl-C while Python still imports torch, in a process that is not forked."""
    failures = []
    for delay in 0.3, 0.6, 0.9:
        process = subprocess.Popen(
            [sys.executable, harness.ROOT / "simclr.py", "--out", "early"],
            cwd=root,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        wrong = how_it_ended(process.returncode, err, 130)
        if wrong:
            failures.append(wrong)
    return 3, failures


# -------------------------------------------------------------------------------------------- disks
def mount(folder: Path, options: str) -> None:
    """Mount a file system in memory, or mount it anew with other options; OSError where not."""
    command = ["mount", "-t", "tmpfs", "-o", options, "reliability", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())


def full_disk(program: str, root: Path) -> tuple[int, list[str]]:
    """Train onto disks of several sizes that are too small; then they grow, and the run goes on."""
    failures = []
    n = 0
    for size in SIZES:
        disk = root / f"disk-{size}-{program}"
        disk.mkdir()
        mount(disk, f"size={size}")
        try:
            folder = f"{disk.name}/run"
            ending = harness.run(f"{command_of(program)} --out {folder}", root, before=note_always)
            if ending.code == 0:
                continue
            n += 1
            wrong = how_it_ended(ending.code, ending.err, 2)
            mount(disk, "remount,size=64m")
            wrong = wrong or how_it_goes_on(program, root, folder)
            if wrong:
                failures.append(f"{program}, {size}: {wrong}")
        finally:
            subprocess.run(["umount", disk], check=True)
    return n, failures


def read_only(program: str, root: Path) -> tuple[int, list[str]]:
    """Begin a run, and resume one, on a disk that takes no writes; then it does, and it goes on."""
    disk = root / f"disk-{program}"
    disk.mkdir()
    mount(disk, "size=64m")
    failures = []
    stage = "epoch 2" if program in IMAGES else "a second experiment"
    folder = f"{disk.name}/run"
    begin = f"{command_of(program)} --out {folder}"
    try:
        for command in begin, f"{program} --resume {folder}":
            mount(disk, "remount,ro")
            ending = harness.run(command, root, before=note_always)
            wrong = how_it_ended(ending.code, ending.err, 2)
            if wrong:
                failures.append(f"{command}: {wrong}")
            mount(disk, "remount,rw")
            if command == begin:
                process = harness.start(begin, root, note_always)
                interrupt(process, root, STAGES[stage], 0)
        wrong = how_it_goes_on(program, root, folder)
        if wrong:
            failures.append(f"{program}: {wrong}")
    finally:
        subprocess.run(["umount", disk], check=True)
    return 2, failures


def disks_of_readers(root: Path) -> tuple[int, list[str]]:
    """interpret.py and look.py onto a full disk and a read-only one."""
    failures = []
    disk = root / "disk-of-readers"
    disk.mkdir()
    for options in "size=4k", "size=16k", "ro":
        mount(disk, options)
        for program in "tools/interpret.py", "tools/look.py":
            ending = harness.run(f"{program} wide.npy --out {disk}/read", root)
            wrong = how_it_ended(ending.code, ending.err, 2)
            if wrong:
                failures.append(f"{program}, {options}: {wrong}")
        subprocess.run(["umount", disk], check=True)
    return 6, failures


# ------------------------------------------------------------------------------------ two processes
def losses(root: Path, folder: str) -> np.ndarray:
    """The losses of a run's epochs."""
    lines = (root / folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return np.array([record["loss"] for record in records if "loss" in record])


def two_processes(method: str, root: Path) -> str:
    """How far the losses of two processes are from those of one, and seeds from each other."""
    found = {}
    for seed in 1, 2, 3:
        flags = f"{SMALL} --epochs 3 --precision fp32 --seed {seed}"
        harness.must(f"{method}.py {flags} --out one-{method}-{seed}", root)
        torchrun = [sys.executable, *"-m torch.distributed.run --standalone".split()]
        command = f"--nproc_per_node=2 {harness.ROOT}/{method}.py {flags} --out two-{method}-{seed}"
        subprocess.run([*torchrun, *command.split()], cwd=root, check=True, capture_output=True)
        for kind in "one", "two":
            found[kind, seed] = losses(root, f"{kind}-{method}-{seed}")
    apart, seeds = [], []
    for seed in 1, 2, 3:
        one = found["one", seed]
        apart.append(np.abs(found["two", seed] / one - 1))
        seeds.append(np.abs(found["one", 1 + seed % 3] / one - 1))
    of_two = f"on average by {np.mean(apart):.2%}, at most by {np.max(apart):.2%}"
    of_seeds = f"on average by {np.mean(seeds):.2%}, at most by {np.max(seeds):.2%}"
    differ = "losses of three epochs, three seeds, differ from one process's"
    return f"two processes, {method}.py: {differ} {of_two}; those of two seeds {of_seeds}"


# -------------------------------------------------------------------------------------- the program
def main(argv=None):
    flags = harness.parser("faults.py", __doc__)
    args = flags.parse_args(argv)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a script's & has ignored
    draw = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        harness.write_data(root)
        train_whole(list(COMMANDS), root)
        found = {}
        for program in progress(SWEPT, "kills at each write"):
            found[f"a kill at each write, {program}"] = kills_at_writes(program, root)
        found["Ctrl-C while importing"] = ctrl_c_in_imports(root)
        found["Ctrl-C while loading"] = ctrl_c_in_loading(root)
        for stage in STAGES:
            programs = IMAGES
            if stage == "a second experiment":
                programs = ["sparse_coding.py"]
            n, failures = 0, []
            for program in progress(programs, f"Ctrl-C in {stage}"):
                more, wrong = ctrl_c(program, stage, root, draw)
                n += more
                failures += wrong
            found[f"Ctrl-C in {stage}"] = n, failures
        found["Ctrl-C in interpret.py, look.py"] = ctrl_c_of_readers(root)
        try:
            for program in SWEPT:
                found[f"a full disk, {program}"] = full_disk(program, root)
                found[f"a read-only disk, {program}"] = read_only(program, root)
            found["disks, interpret.py and look.py"] = disks_of_readers(root)
        except OSError as error:
            print(f"no disks, they could not be mounted: {error}")
        sentences = []
        for method in progress(["simclr", "ncl", "bayesncl"], "two processes"):
            sentences.append(two_processes(method, root))

    rows = [["fault", "n", "as it should be"]]
    told = []
    for fault, (n, failures) in found.items():
        rows.append([fault, str(n), str(n - len(failures))])
        for failure in failures:
            told.append(f"{fault}: {failure}")
    harness.tell(args.write, "Faults", "\n".join([interpret.markdown(rows), *sentences, *told]))


if __name__ == "__main__":
    common.launch(main)
