"""A finished run as a page to browse its dimensions, as pictures and as a table; nothing is trained.

    python look.py runs/<run>                     into the run's folder
    python look.py runs/<run> runs/<other> ...    the same for each; the page in the first has all on its data set
    ... --data-root DATA --classes NAMES.txt      where the data set is elsewhere now; names of its classes, one a line

look.html            every dimension, the images and (after tools/words.py) words that activate it: one offline file
top_images.png       the ten most active dimensions, a column each: the images that activate it most ([NCL] Fig. 1a, b)
active_images.png    the same columns: of all images that activate it, evenly spread from the strongest to the weakest
dimensions.csv       common.dimensions of the test images, a row per dimension, the most active first
and with matplotlib:
dimensions.png       correlation of random dimensions ([NCL] Fig. 3c), activations (Fig. 1c, d), active ones per image
selection.png        simclr.py, ncl.py, bayesncl.py: P@10 and probe with the m most active dimensions and m random ones
collapse.png         simsiam.py: the collapse indicator over the epochs ([SimSiam] Fig. 2)
spectra.png          sparsehead.py, several runs of any file: eigenvalues of the covariances. Runs with --head none,
                     linear and mlp together make [SparseHead] Fig. 1
<experiment>.png     sparse_coding.py: minimum max-cosine and loss over training
"""
import argparse
import base64
import hashlib
import io
import json
import math
import re
import shlex
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import torchvision.transforms.v2.functional as TF
from torch import Tensor

import common

ASSETS = Path(__file__).parent / "assets"
SHOWN = STRONGEST, SPREAD, RANDOM = 48, 40, 40  # images of a dimension on its page
TOP, NEAR, PARTNERS, BINS = 32, 12, 8, 32  # dimensions and neighbours of an image; partners of a dimension, histogram
KINDS = {"f4": "Float32Array", "u1": "Uint8Array", "i2": "Int16Array", "u2": "Uint16Array", "u4": "Uint32Array"}


# ------------------------------------------------------------------------------------------------------------- reading
def read_run(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json and embeddings.npz of a run of an image method: h (N, d), z (N, K) float32, labels (N,) of its test
    images. BadInput where there is no run, or one that has not finished."""
    try:
        config = json.loads((folder / "config.json").read_text())
        config["method"], Path(config["dataset"]), Path(config["data_root"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise common.BadInput(f"{folder} is not the folder of a run ({type(error).__name__}: {error})")
    if not (folder / "embeddings.npz").exists():
        raise common.BadInput(f"{folder} has no embeddings.npz: the run has not finished, or an older version made it")
    try:
        with np.load(folder / "embeddings.npz", allow_pickle=False) as kept:
            arrays = {key: torch.from_numpy(kept[key]) for key in ("h", "z", *kept.files)}
        said = folder / "words.json"
        config["words"] = json.loads(said.read_text())["words"] if said.exists() else None
        (h, z), labels = (arrays[key].float() for key in "hz"), [*arrays.values()][2:]
        if not (h.ndim == z.ndim == 2 and len(h) == len(z) > 1 and z.shape[1] and (h.sum() + z.sum()).isfinite() and
                all(y.dtype == torch.int64 and y.shape == (len(z),) and y.min() >= 0 for y in labels)):
            raise ValueError("embeddings.npz is damaged, or the embeddings are not finite in 16 bits")
        config["lines"] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        config["lines"][-1]["epochs"]  # which only the final record has
    except Exception as error:  # what a damaged archive may raise is not listed anywhere
        raise common.BadInput(f"what {folder} holds cannot be read ({type(error).__name__}: {error})")
    return config, arrays | {"h": h, "z": z}


def images_of(config: dict, arrays: dict[str, Tensor], root: str) -> Tensor:
    """The test images (N, 3, H, W) uint8 behind a run's embeddings; BadInput where the data set is another by now."""
    data = common.load_data(config["dataset"], root)
    pairs = [(getattr(data, f"{name}_test"), arrays.get(name)) for name in ("y", "background")]
    if len(data.x_test) != len(arrays["z"]) or not all(a is None or b is None or torch.equal(a, b) for a, b in pairs):
        raise common.BadInput(f"{config['dataset']} under {root} is not the data set of this run; give its --data-root")
    return data.x_test


def labels_of(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """The labels, by the prefix of what common.dimensions says of them."""
    return {key: arrays[name] for key, name in (("", "y"), ("background_", "background")) if name in arrays}


def class_names(dataset: str, root: str, labels: dict[str, Tensor], given: Path | None) -> list[list[str]]:
    """The names of the classes of each label: given, of a known data set, of image folders, or numbers."""
    folder, read = ASSETS / "classes", lambda file: file.read_text(encoding="utf-8", errors="replace").splitlines()
    known, backgrounds = given or folder / f"{dataset}.txt", folder / f"{dataset}-backgrounds.txt"
    folders = (path for path in (Path(root) / dataset / "train").glob("*") if path.is_dir())
    first = read(known) if given or known.exists() else sorted(path.name for path in folders)
    names = {"": first, "background_": read(backgrounds) if backgrounds.exists() else []}
    sizes = {key: int(y.max()) + 1 for key, y in labels.items()}
    if given and len(first) < sizes.get("", 0):
        raise common.BadInput(f"{given} names {len(first)} classes; {dataset} has {sizes['']}")
    return [names[key][:C] if len(names[key]) >= C else [*map(str, range(C))] for key, C in sizes.items()]


# ------------------------------------------------------------------------------------------------- pictures and a table
def draw_images(folder: Path, images: Tensor, e: Tensor) -> None:
    """top_images.png and active_images.png of embeddings e (N, K) of images (N, 3, H, W) uint8."""
    e = F.normalize(e).abs()
    e = e[:, e.mean(0).argsort(descending=True)[:10]]  # (N, 10)
    ranked, rows = e.argsort(0, descending=True), min(8, len(e))
    weakest = (e > common.ACTIVE).sum(0).clamp(min=1) - 1
    spread = ranked.gather(0, (torch.linspace(0, 1, rows)[:, None] * weakest).long())  # (8, 10)
    for name, chosen in ("top_images", ranked[:rows]), ("active_images", spread):
        tiles = images[chosen.flatten()].float() / 255
        grid = torchvision.utils.make_grid(tiles, nrow=chosen.shape[1], pad_value=1)
        scale = max(1, 64 // images.shape[-1])  # small images are enlarged, pixel by pixel
        grid = grid.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
        torchvision.utils.save_image(grid, folder / f"{name}.png")


def dimensions(arrays: dict[str, Tensor]) -> str:
    """dimensions.csv of a run's arrays: the number of each dimension, and what common.dimensions says of it, empty
    where that is undefined."""
    columns = common.dimensions(arrays["z"], labels_of(arrays), arrays["h"])
    columns = {"dimension": torch.arange(arrays["z"].shape[1])} | columns
    rows = sorted(zip(*(column.tolist() for column in columns.values())), key=lambda row: -row[2])  # mean |activation|
    rows = [["" if math.isnan(value) else f"{value:.6g}" for value in row] for row in rows]
    return "".join(",".join(row) + "\n" for row in [columns, *rows])


# ------------------------------------------------------------------------------------------------------------ the page
def of_dimensions(e: Tensor, labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the page shows of dimensions beside common.dimensions, of normalised |activations| e (N, K), K rows each:
    images (N: none) and their activations as bytes of the largest, a histogram, counts of classes, other dimensions."""
    (N, K), active, draw = e.shape, (e > common.ACTIVE).float(), torch.Generator().manual_seed(0)
    n, peak, place = active.sum(0).long(), e.amax(0), torch.arange(max(N, *SHOWN))[:, None]  # (K,), (K,), ranks
    spread = (torch.linspace(0, 1, SPREAD)[:, None] * (n - 1)).round().long()
    spread = torch.where(n > SPREAD, spread, place[:SPREAD])
    random = torch.rand(len(place), K, generator=draw).masked_fill(place >= n, -1).topk(RANDOM, 0).indices
    places = torch.cat([place[:STRONGEST].expand(-1, K), spread, random])  # (128, K)
    shown = e.argsort(dim=0, descending=True, stable=True).gather(0, places.clamp(0, N - 1))
    share = (e / peak).nan_to_num()
    bins = torch.zeros(BINS, K).scatter_add_(0, (share * BINS).long().clamp(max=BINS - 1), active)
    both = active.T @ active  # (K, K), images that activate both
    either, expected = n[:, None] + n - both, n[:, None] * n / N
    together = (both / either).nan_to_num().fill_diagonal_(0).topk(min(PARTNERS, K))
    never = torch.where(both == 0, expected, 0).topk(min(PARTNERS, K))
    found = {key + "count": (active.T @ F.one_hot(y).float()).long() for key, y in labels.items()}  # (K, C)
    return found | {
        "n": n, "peak": peak, "bins": bins.long().T, "both": both.gather(1, together.indices).long(),
        "shown": shown.masked_fill(places >= n, N).T, "value": (255 * share.gather(0, shown)).round().long().T,
        "together": together.indices.masked_fill(together.values == 0, K),
        "never": never.indices.masked_fill(never.values == 0, K)}


def of_images(e: Tensor) -> dict[str, Tensor]:
    """What the page shows of images, of normalised embeddings e (N, K), N rows each: their strongest dimensions (K:
    none) with signed values in 16 bits of the largest, the number of active ones, the nearest images by cosine."""
    value, index = e.abs().topk(min(TOP, e.shape[1]))
    cosine, near = common.neighbours(e, e, min(NEAR, len(e) - 1), skip_self=True)
    signed = (32767 * e.gather(1, index) / value[:, :1]).nan_to_num().round()
    return {"dims": index.masked_fill(value <= common.ACTIVE, e.shape[1]), "size": signed.long(),
            "largest": value[:, 0], "actives": (e.abs() > common.ACTIVE).sum(1), "near": near,
            "close": (32767 * cosine).round().long()}


def binary(arrays: dict[str, Tensor]) -> tuple[dict[str, list], str]:
    """{name: array} → {name: [JavaScript's type, offset, length]} and all of them, compressed, in base64."""
    where, parts, at = {}, [], 0
    for name, array in arrays.items():
        a = array.numpy()
        kind = "f4" if a.dtype.kind == "f" else next(k for k in [*KINDS][1:] if (a.astype(k) == a).all())
        where[name] = [KINDS[kind], at, a.size]
        parts.append(a.astype("<" + kind).tobytes() + bytes(-a.size * int(kind[1]) % 4))
        at += len(parts[-1])
    return where, base64.b64encode(zlib.compress(b"".join(parts), 9)).decode()


def sprites(images: Tensor, largest=64, quality=85) -> tuple[dict[str, int], list[str]]:
    """Images (N, 3, H, W), shrunk to `largest` pixels, as JPEGs in base64, below 16 megapixels each, which phones take;
    in tiles of multiples of 16 pixels, so that no block of the compression has parts of two; and their geometry."""
    if max(images.shape[2:]) > largest:
        size = [max(1, round(side * largest / max(images.shape[2:]))) for side in images.shape[2:]]
        images = torch.cat([TF.resize(part, size, antialias=True) for part in images.split(500)])
    h, w = images.shape[2:]
    H, W = (-(-side // 16) * 16 for side in (h, w))
    rows, sheets = 15_900_000 // ((columns := min(4096 // W, len(images))) * W * H), []
    for part in images.split(columns * rows):
        tiles = F.pad(part.float(), (0, W - w, 0, H - h), mode="replicate").byte()
        tiles = torch.cat([tiles, tiles.new_full((-len(part) % columns, 3, H, W), 127)])
        sheet = tiles.view(-1, columns, 3, H, W).permute(2, 0, 3, 1, 4).reshape(3, -1, columns * W)
        TF.to_pil_image(sheet).save(jpeg := io.BytesIO(), "jpeg", quality=quality)
        sheets.append(base64.b64encode(jpeg.getvalue()).decode())
    return {"w": w, "h": h, "W": W, "H": H, "columns": columns, "rows": rows}, sheets


def page(runs: list[tuple[Path, dict, dict[str, Tensor]]], images: Tensor, names: list[list[str]], command: str) -> str:
    """look.html, written by `command`, of runs (folder, config, arrays) on images (N, 3, H, W); names of classes."""
    labels, arrays, facts = labels_of(runs[0][2]), {}, []
    for q, y in enumerate(labels.values()):
        random = common.random_consistency(y).sort(0).values  # (200, N)
        arrays |= {f"label{q}": y, f"base{q}": y.bincount(), f"chance{q}": random.mean(0), f"high{q}": random[189]}
    for r, (folder, config, own) in enumerate(runs):
        e, last = F.normalize(own["z"]), config["lines"][-1] | common.interpretability(own["z"], labels, own["h"])
        found = common.dimensions(own["z"], labels, own["h"]) | of_dimensions(e.abs(), labels) | of_images(e)
        arrays |= {f"{r}{name}": array for name, array in found.items()}
        metrics = {key: v for key, v in last.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        about = {key: config.get(key) or "not noted" for key in ("command", "commit", "date")}
        facts.append(about | {"name": folder.resolve().name, "metrics": metrics, "K": (K := e.shape[1]),
                              "words": config["words"], "top": min(TOP, K), "partners": min(PARTNERS, K)})
    where, numbers = binary(arrays)
    geometry, sheets = sprites(images)
    meta = {"dataset": runs[0][1]["dataset"], "N": len(images), "labels": names, "keys": [*labels], "runs": facts,
            "active": common.ACTIVE, "shown": SHOWN, "near": min(NEAR, len(images) - 1), "bins": BINS, "tile": geometry,
            "arrays": where, "command": command}
    template = (ASSETS / "look.html").read_text(encoding="utf-8")
    script = template.split("<script>")[1].split("</script>")[0]  # the one that may run
    holes = {"hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(), "numbers": numbers,
             "meta": json.dumps(meta, sort_keys=True).replace("<", "\\u003c"),
             "sheets": "\n".join(f'<script type="text/plain" class="sheet">{sheet}</script>' for sheet in sheets)}
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: holes[hole[1]], template)


# ------------------------------------------------------------------------------------------------------------- program
def main(argv=None):
    flags = argparse.ArgumentParser(prog="look.py", usage=argparse.SUPPRESS, description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    flags.add_argument("--data-root", help="folder of the data sets (default: the run's)")
    flags.add_argument("--classes", type=Path, help="a file with the name of a class on each line")
    args, command = flags.parse_args(argv), shlex.join(["python", "look.py", *(sys.argv[1:] if argv is None else argv)])
    landscapes = [folder for folder in args.runs if (folder / "curves.npz").exists()]
    runs = [(folder, *read_run(folder)) for folder in args.runs if folder not in landscapes]
    roots = [args.data_root or config["data_root"] for _, config, _ in runs]
    all_images = [images_of(config, arrays, root) for (_, config, arrays), root in zip(runs, roots)]
    for run, images, root in zip(runs, all_images, roots):
        folder, config, arrays = run
        draw_images(folder, images, arrays["z"])
        (folder / "dimensions.csv").write_text(dimensions(arrays))
        beside = [other for other in runs if other[1]["dataset"] == config["dataset"]]
        names = class_names(config["dataset"], root, labels_of(arrays), args.classes)
        text = page(beside if run is beside[0] else [run], images, names, command)
        (folder / "look.html").write_text(text, encoding="utf-8")
        print(f"open {folder / 'look.html'} in a browser ({len(text) / 1e6:.1f} MB)")
    sys.path.append(str(ASSETS.parent / "tools"))
    try:
        import draw
    except ImportError as error:
        return print(f"the other pictures need matplotlib ({error})")
    draw.landscapes(landscapes)
    draw.pictures(runs)


if __name__ == "__main__":
    common.launch(main)
