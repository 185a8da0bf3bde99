"""The built-in data set `shapes`: 6,000 images of an object on a background, with captions.

Each image has two labels, its object and its background. Objects are equally frequent and hard to
tell apart; backgrounds are neither. The dimensions of an unsupervised method therefore show which
of the two it prefers to encode. tools/robustness.py draws shifted test images, with other
frequencies, other backgrounds, or objects paired with backgrounds.
"""

import math

import numpy as np
import torch
from torch import Tensor

F64 = torch.float64  # so that every machine draws the same bytes

# -------------------------------------------------------------------------------------- frequencies
BACKGROUNDS = {"sky": 0.40, "grass": 0.25, "sand": 0.15, "water": 0.12, "night": 0.08}
UNSEEN = {"tiles": 0.5, "fog": 0.5}  # two that no training image has

# ------------------------------------------------------------------------------------------- words
SIZES = ["small", "large"]
COLOURS = ["orange", "crimson", "pink"]
PLACES = [
    "top left",
    "top",
    "top right",
    "left",
    "middle",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
]
PHRASES = [
    "a {size} {colour} {object} on {background}, {place}",
    "{background} with a {colour} {object}, {size}, {place}",
    "{place} on {background} there is a {size} {colour} {object}",
    "{object}, {colour} and {size}, {place}, {background}",
]

# ------------------------------------------------------------------------------------- backgrounds
MEAN_COLOURS = {  # red, green, blue in %, in the order of TEXTURES
    "sky": (45, 65, 95),
    "grass": (25, 55, 15),
    "sand": (85, 75, 50),
    "water": (10, 45, 60),
    "night": (5, 5, 15),
    "tiles": (35, 22, 50),
    "fog": (70, 70, 72),
}


# A background is its colour plus 0.22 times its texture. Textures are roughly in [−1, 1], but for
# stars (4.5).
# u, v: (32, 32), the pixel's place from −1 to 1, to the right and down
# noise: (n, 32, 32), uniform in [0, 1]
def sky(u, v, noise):
    haze = 0.7 * v  # brighter to the horizon
    clouds = ((3 * u).sin() * (5 * v).sin()).clamp(min=0)
    return haze + 0.6 * clouds


def grass(u, v, noise):
    blades = (22 * u + 3 * (4 * v).sin()).sin()
    return blades * (0.4 + 0.6 * noise)


def sand(u, v, noise):
    return 2.4 * noise - 1.2


def water(u, v, noise):
    return (14 * v + 1.5 * (3 * u).sin()).sin()


def night(u, v, noise):
    stars = noise > 0.96
    return 4.5 * stars


def tiles(u, v, noise):
    row = (8 * v).floor()  # two pixels high
    return 0.8 * (6 * u + row * 1.5).sin()


def fog(u, v, noise):
    return (2 * u).cos() * (3 * v).cos() + 0.3 * noise


TEXTURES = {
    "sky": sky,
    "grass": grass,
    "sand": sand,
    "water": water,
    "night": night,
    "tiles": tiles,
    "fog": fog,
}


# ----------------------------------------------------------------------------------------- objects
# An outline is a function of points: negative inside, 0 on the edge, positive outside, and roughly
# the distance from the edge. x, y: (n, 32, 32), from the object's centre, in units of its size.
def radius(x, y):
    return (x**2 + y**2).sqrt()


def polygon(x, y, sides):
    """Regular, with corners at radius 1."""
    wedge = math.pi / sides  # half of the angle of a side
    from_middle = torch.remainder(torch.atan2(y, x), 2 * wedge) - wedge
    return radius(x, y) * from_middle.cos() - math.cos(wedge)


def circle(x, y):
    return radius(x, y) - 0.9


def triangle(x, y):
    return polygon(x, y, 3)


def square(x, y):
    return polygon(x, y, 4)


def hexagon(x, y):
    return polygon(x, y, 6)


def star(x, y):
    """Five tips at radius 1, valleys at radius 0.45."""
    wedge = math.pi / 5
    from_tip = torch.remainder(torch.atan2(y, x) + wedge, 2 * wedge) - wedge
    from_tip = from_tip.abs()
    along = radius(x, y) * from_tip.cos() - 1  # from the tip
    across = radius(x, y) * from_tip.sin()
    edge_along = 0.45 * math.cos(wedge) - 1  # from the tip to a valley
    edge_across = 0.45 * math.sin(wedge)
    # Cross product / length: the distance from the line through tip and valley, negative inside.
    cross = along * edge_across - across * edge_along
    return cross / math.hypot(edge_along, edge_across)


def clover(x, y):
    return radius(x, y) - 0.6 - 0.4 * (4 * torch.atan2(y, x)).cos()


def ring(x, y):
    return (radius(x, y) - 0.7).abs() - 0.22


def plus(x, y):
    nearer = x.abs().minimum(y.abs())
    farther = x.abs().maximum(y.abs())
    return torch.maximum(nearer - 0.3, farther - 0.95)


def half_disc(x, y):
    return torch.maximum(radius(x, y) - 1, y)


def crescent(x, y):
    hole = 0.8 - radius(x - 0.5, y)
    return torch.maximum(radius(x, y) - 1, hole)


OUTLINES = {
    "circle": circle,
    "triangle": triangle,
    "square": square,
    "hexagon": hexagon,
    "star": star,
    "clover": clover,
    "ring": ring,
    "plus": plus,
    "half-disc": half_disc,
    "crescent": crescent,
}
OBJECTS = list(OUTLINES)


# ------------------------------------------------------------------------------------------ images
def draw(
    train=5000, test=1000, seed=0, frequencies=BACKGROUNDS, paired=0.0, turn=0
) -> dict[str, np.ndarray]:
    """Draw arrays x_train, x_test, y_train, …; every machine draws the same bytes.

    x            images (N, 3, 32, 32) uint8
    y            (N,), their objects, indices into OBJECTS, all equally frequent
    background   (N,), their backgrounds, indices into TEXTURES, as frequent as `frequencies` says
    captions     (N,) strings

    train, test: how many images
    frequencies: of backgrounds, by name; of the others 0
    paired: the share of images whose background is not random: for object y it is (y + turn) mod 5
    """
    n = train + test
    random = torch.Generator().manual_seed(seed)

    # The order in which numbers are drawn is part of the data set.
    def rand(*shape):
        """Uniform in [0, 1), (*shape, 1, 1), to be combined with images."""
        return torch.rand(*shape, 1, 1, generator=random, dtype=F64)

    y = torch.arange(n) % len(OBJECTS)
    weights = torch.tensor([frequencies.get(name, 0.0) for name in TEXTURES], dtype=F64)
    background = torch.multinomial(weights, n, replacement=True, generator=random)
    if paired:
        chosen = rand(n).flatten() < paired
        partner = (y + turn) % len(BACKGROUNDS)
        background = torch.where(chosen, partner, background)
    noise = torch.rand(n, 32, 32, generator=random, dtype=F64)

    size = 0.7 + 0.22 * rand(n)  # (n, 1, 1): its radius, half of the image's side being 1
    angle = 2 * math.pi * rand(n)
    # The centre, where the image goes from −1 to 1. An object may stick out by 0.05.
    cx = (2 * rand(n) - 1) * (1.05 - size)
    cy = (2 * rand(n) - 1) * (1.05 - size)
    red = torch.tensor([0.65, 0.15, 0.15], dtype=F64).view(3, 1, 1)
    fill = red + 0.27 * rand(n, 3)  # (n, 3, 1, 1)
    phrase = torch.randint(len(PHRASES), (n,), generator=random)

    images = paint_backgrounds(background, noise)
    paint_objects(images, y, size, angle, cx, cy, fill)
    _, green, blue = fill[:, :, 0, 0].T
    numbers = {
        "size": (size.flatten() > 0.81).int(),  # 0.81: the middle of 0.7 and 0.92
        "colour": third(blue - green),  # less blue than green: orange; alike: crimson; more: pink
        "object": y,
        "background": background,
        "place": 3 * third(cy.flatten()) + third(cx.flatten()),
    }
    parts = {
        "x": (images.clamp(0, 1) * 255 + 0.5).to(torch.uint8).numpy(),
        "y": y.numpy(),
        "background": background.numpy(),
        "captions": write_captions(phrase, numbers),
    }
    arrays = {}
    for key, values in parts.items():
        arrays[f"{key}_train"] = values[:train]
        arrays[f"{key}_test"] = values[train:]
    return arrays


def pixel_centres() -> tuple[Tensor, Tensor]:
    """u and v (32, 32): the positions of the pixels, from −1 to 1, to the right and down."""
    centre = (torch.arange(32, dtype=F64) + 0.5) / 16 - 1
    v, u = torch.meshgrid(centre, centre, indexing="ij")
    return u, v


def paint_backgrounds(background: Tensor, noise: Tensor) -> Tensor:
    """Images (n, 3, 32, 32) of backgrounds (n,), indices into TEXTURES; noise: (n, 32, 32)."""
    u, v = pixel_centres()
    colours = torch.tensor(list(MEAN_COLOURS.values()), dtype=F64) / 100
    images = colours[background].view(-1, 3, 1, 1).repeat(1, 1, 32, 32)
    for b, texture in enumerate(TEXTURES.values()):
        chosen = background == b
        grey = texture(u, v, noise[chosen])  # (32, 32), or with noise (n_b, 32, 32)
        images[chosen] += 0.22 * grey.unsqueeze(-3)
    return images


def paint_objects(images, y, size, angle, cx, cy, fill) -> None:
    """Paint the objects y (n,) over images (n, 3, 32, 32).

    size, angle, cx, cy: (n, 1, 1); fill: their colours (n, 3, 1, 1)
    """
    u, v = pixel_centres()
    right = (u - cx) / size  # (n, 32, 32), from the object's centre
    down = (v - cy) / size
    px = right * angle.cos() + down * angle.sin()
    py = down * angle.cos() - right * angle.sin()
    for c, outline in enumerate(OUTLINES.values()):
        chosen = (y == c).nonzero()[:, 0]
        distance = 16 * size[chosen] * outline(px[chosen], py[chosen])  # in pixels
        inside = (0.5 - distance).clamp(0, 1)  # anti-aliased over one pixel
        inside = inside[:, None]  # (n_c, 1, 32, 32)
        images[chosen] = images[chosen] * (1 - inside) + fill[chosen] * inside


# ---------------------------------------------------------------------------------------- captions
def third(x: Tensor) -> Tensor:
    """0, 1 or 2: x below −0.1, between, above 0.1."""
    return 1 + (x / 0.2).round().clamp(-1, 1).long()


def write_captions(phrase: Tensor, numbers: dict[str, Tensor]) -> np.ndarray:
    """Captions (n,) made from phrases (n,), indices into PHRASES.

    numbers: for each word in braces, indices (n,) into the list of possible words.
    """
    words = {
        "size": SIZES,
        "colour": COLOURS,
        "object": OBJECTS,
        "background": list(TEXTURES),
        "place": PLACES,
    }
    captions = []
    for i, p in enumerate(phrase.tolist()):
        chosen = {key: words[key][numbers[key][i]] for key in words}
        captions.append(PHRASES[p].format(**chosen))
    return np.array(captions)


# -------------------------------------------------------------------------------------- no program
if __name__ == "__main__":
    print("shapes.py is the built-in data set, not a program: run python simclr.py, which uses it")
