"""Picture files of any folder: which they are, in what order, and what is in them.

tools/decode.py makes training data of them, look.py shows them.
"""

import os
from pathlib import Path

import numpy as np
import torchvision.transforms.v2.functional as TF
from PIL import Image, ImageOps

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
UNREAD = (".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe")  # pictures, to be converted first
LEFT_BY_PROGRAMS = ("__MACOSX", "@eaDir")  # copies and thumbnails, as in folders named .something
BITS_PER_SAMPLE, POLARITY = 258, 262  # a TIFF file's tags


# --------------------------------------------------------------------------- which, and what order
def find(folder: Path, endings=ENDINGS) -> list[str]:
    """The files in a folder and below that end so: names within it, in ImageFolder's order.

    Links are followed. A link to nothing is listed too, so that reading it fails by name and no
    class vanishes. Names that begin with a dot, and what is LEFT_BY_PROGRAMS, are left out at every
    depth; a line says how many, and how many pictures of other endings there are.
    """
    found = []
    hidden = []
    unread = []

    def walk(inside: str, real: tuple[str, ...]) -> None:
        here = os.path.join(folder, inside)
        real = *real, os.path.realpath(here)
        if real[-1] in real[:-1]:  # a link back to a folder that it is in
            return
        for name in os.listdir(here):
            path = os.path.join(inside, name)
            of_kind = name.lower().endswith(endings)
            is_folder = os.path.isdir(os.path.join(here, name))
            if is_hidden(name):
                # .decoding: where tools/decode.py works
                if name != ".decoding" and (of_kind or is_folder):
                    hidden.append(path)
            elif is_folder:
                walk(path, real)
            elif of_kind or not os.path.exists(os.path.join(here, name)):  # a link to nothing
                found.append(path)
            elif name.lower().endswith(UNREAD):
                unread.append(path)

    walk("", ())
    if hidden:
        count = f"{len(hidden)} hidden files or folders are left out"
        print(f"{folder}: {count}, first {min(hidden)}")
    if unread:
        print(f"{folder}: {len(unread)} pictures are left out; convert them, first {min(unread)}")
    return sorted(found, key=image_folder)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is none of the user's."""
    return name.startswith(".") or name in LEFT_BY_PROGRAMS


def image_folder(name: str) -> tuple[str, str, str]:
    """torchvision's ImageFolder sorts by class, in a class by folder, in a folder by file."""
    folder, file = os.path.split(name)
    return folder.split(os.sep)[0], folder, file


def part_by_part(name: str) -> list[str]:
    """As pathlib sorts paths: folder "a" is before folder "a-b"."""
    return name.split(os.sep)


# sorted() has "a-b/1.png" before "a/1.png".
ORDERS = {"sorted": str, "ImageFolder": image_folder, "pathlib": part_by_part}


# -------------------------------------------------------------------------------------- one picture
def read(source, at_least: int | None = None) -> Image.Image:
    """A picture in RGB of 8 bits, upright as EXIF says, what is transparent over white.

    Grey values v of 16 bits become v / 257, rounded. Of 16-bit colours Pillow takes the upper byte,
    of a moving picture the first. ValueError where it does not tell how large a value can be.

    source: a path, or a file of bytes
    at_least: pixels of a side that are needed; of a large JPEG not many more are decoded
    """
    with Image.open(source) as file:
        if file.format == "TIFF" and file.n_frames > 1:
            raise ValueError("it has several pages; save each as a file of its own")
        if at_least:
            file.draft("RGB", (at_least, at_least))
        try:
            image = ImageOps.exif_transpose(file)
        except Exception:  # damaged EXIF; where the picture is, the next line fails too
            image = file.copy()
        if file.mode.startswith(("I", "F")):
            image = in_8_bits(image, file)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def in_8_bits(image: Image.Image, file: Image.Image) -> Image.Image:
    """A grey picture of more bits, upright, as one of 8; file: as it was opened."""
    values = np.asarray(image)
    grey = values * (255 / largest_value(file))
    if file.format == "TIFF" and file.tag_v2.get(POLARITY) == 0:  # white is 0
        grey = 255 - grey
    transparent = file.info.get("transparency")
    if transparent is not None:
        grey[values == transparent] = 255
    return Image.fromarray(grey.round().astype(np.uint8))


def largest_value(file: Image.Image) -> int:
    """What white is in a grey picture of more than 8 bits; ValueError where nothing tells."""
    of_16_bits = file.mode == "I" and file.format in ("PNG", "PPM")
    if not (of_16_bits or file.mode.startswith("I;16")):
        kind = "floats" if file.mode == "F" else "signed or 32-bit integers"
        raise ValueError(f"it holds {kind} of unknown range; save it with 8 or 16 bits")
    bits = 16
    if file.format == "TIFF":
        (bits,) = file.tag_v2[BITS_PER_SAMPLE]  # 12 or 16
    return 2**bits - 1


def square(image: Image.Image, size: int) -> Image.Image:
    """The shorter side to `size` pixels, with anti-aliasing, then the central square.

    What is longer than 32 times its shorter side is cut to that first: it might fill the memory.
    """
    most = 32 * min(image.size)
    image = TF.center_crop(image, [min(image.height, most), min(image.width, most)])
    image = TF.resize(image, [size])
    return TF.center_crop(image, [size, size])
