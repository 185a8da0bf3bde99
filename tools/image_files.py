"""Find the image files in a folder, put them in order, and read them.

tools/decode.py makes training data from them; look.py shows them.
"""

import os
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torchvision.transforms.v2.functional as TF
from PIL import Image, ImageOps, UnidentifiedImageError

# Pillow tries no other format, whatever the ending: for an EPS it would start another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
UNREAD = (".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe")  # pictures, to be converted first
LEFT_BY_PROGRAMS = ("__MACOSX", "@eaDir")  # copies and thumbnails, as in folders named .something
BITS_PER_SAMPLE, POLARITY = 258, 262  # a TIFF file's tags
# What is wrong with a picture is an exception, or does not matter.
warnings.filterwarnings("ignore", module=r"PIL\.")


class Unsuitable(ValueError):
    """A picture that is not damaged, but cannot be used as it is. The message says what to do."""


# --------------------------------------------------------------------------- which, and what order
def find(folder: Path, endings=ENDINGS) -> list[str]:
    """The files in a folder, at any depth, with these endings: paths in it, in ImageFolder's order.

    Links are followed. Broken links are listed too, so that reading one fails with its name and no
    class disappears. Names that begin with a dot and those in LEFT_BY_PROGRAMS are left out at any
    depth; a printed line says how many, and how many pictures have an ending that cannot be read.
    """
    found = []
    hidden = []
    unread = []
    next_line = time.monotonic() + 10
    waiting = [("", ())]  # folders in `folder`, each with the real paths of those that it is in
    while waiting:
        inside, outer = waiting.pop()
        here = os.path.join(folder, inside)
        real = *outer, os.path.realpath(here)
        if real[-1] in real[:-1]:  # a link back to a folder that it is in
            continue
        for name in os.listdir(here):
            path = os.path.join(inside, name)
            of_kind = name.lower().endswith(endings)
            is_folder = os.path.isdir(os.path.join(here, name))
            if is_hidden(name):
                # .decoding: where tools/decode.py works
                if name != ".decoding" and (of_kind or is_folder):
                    hidden.append(path)
            elif is_folder:
                waiting.append((path, real))
            elif of_kind or not os.path.exists(os.path.join(here, name)):  # a broken link
                found.append(path)
            elif name.lower().endswith(UNREAD):
                unread.append(path)
            if time.monotonic() > next_line:
                print(f"{folder}: {len(found):,} files so far", file=sys.stderr, flush=True)
                next_line += 10
    if hidden:
        count = f"{len(hidden)} hidden files or folders are left out"
        print(f"{folder}: {count}, first {min(hidden)}")
    if unread:
        print(f"{folder}: {len(unread)} pictures are left out; convert them, first {min(unread)}")
    return sorted(found, key=image_folder)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not one of the user's own."""
    return name.startswith(".") or name in LEFT_BY_PROGRAMS


def image_folder(name: str) -> tuple[str, str, str]:
    """Sort key of torchvision's ImageFolder: by class, then by folder, then by file."""
    folder, file = os.path.split(name)
    return folder.split(os.sep)[0], folder, file


def part_by_part(name: str) -> list[str]:
    """Sort key of pathlib: folder "a" comes before folder "a-b"."""
    return name.split(os.sep)


def natural(name: str) -> str:
    """Sort key of people, whose programs name files in a loop: 2.png comes before 10.png."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(255), name)


# sorted() has "a-b/1.png" before "a/1.png", and 10.png before 2.png.
ORDERS = {
    "sorted": str,
    "ImageFolder": image_folder,
    "pathlib": part_by_part,
    "natural": natural,
}


# -------------------------------------------------------------------------------------- one picture
def read(source, at_least: int | None = None) -> Image.Image:
    """A picture as 8-bit RGB, rotated as EXIF says, with transparent pixels over white.

    A 16-bit grey value v becomes v / 257, rounded. For 16-bit colours Pillow takes the upper byte,
    for an animation the first picture. Unsuitable if, for one, the range of the values is unknown.

    source: a path, or a binary file
    at_least: how many pixels a side needs; a large JPEG is decoded to not many more
    """
    if isinstance(source, (str, Path)) and not os.path.isfile(source):
        raise ValueError("it is not there, or no file")  # a pipe, for which one would wait
    try:
        file = Image.open(source, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"it is damaged, or none of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise Unsuitable(f"make it smaller: {error}") from None
    with file:
        if file.format == "TIFF" and file.n_frames > 1:
            raise Unsuitable("it has several pages; save each page as a separate file")
        if at_least:
            file.draft("RGB", (at_least, at_least))
        # Here a damaged picture fails. Asked a second time, Pillow would return what it had so far.
        file.load()
        try:
            image = ImageOps.exif_transpose(file)
        except Exception:  # damaged EXIF
            image = file.copy()
        if file.mode.startswith(("I", "F")):
            image = in_8_bits(image, file)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def in_8_bits(image: Image.Image, file: Image.Image) -> Image.Image:
    """An upright grey picture of more than 8 bits, converted to 8; file: as it was opened."""
    values = np.asarray(image)
    grey = values * (255 / largest_value(file))
    if file.format == "TIFF" and file.tag_v2.get(POLARITY) == 0:  # white is 0
        grey = 255 - grey
    transparent = file.info.get("transparency")
    if transparent is not None:
        grey[values == transparent] = 255
    return Image.fromarray(grey.round().astype(np.uint8))


def largest_value(file: Image.Image) -> int:
    """The value of white in a grey picture of more than 8 bits; Unsuitable if that is unknown."""
    of_16_bits = file.mode == "I" and file.format in ("PNG", "PPM")
    if not (of_16_bits or file.mode.startswith("I;16")):
        kind = "floats" if file.mode == "F" else "signed or 32-bit integers"
        raise Unsuitable(f"it holds {kind} of unknown range; save it with 8 or 16 bits")
    bits = 16
    if file.format == "TIFF":
        (bits,) = file.tag_v2[BITS_PER_SAMPLE]  # 12 or 16
    return 2**bits - 1


def square(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` pixels, with anti-aliasing, and cut out the centre.

    A side longer than 32 times the shorter one is cut to that first, or it might fill the memory.
    """
    most = 32 * min(image.size)
    image = TF.center_crop(image, [min(image.height, most), min(image.width, most)])
    image = TF.resize(image, [size])
    return TF.center_crop(image, [size, size])
