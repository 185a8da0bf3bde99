"""The built-in data set `shapes`: 6,000 images of an object on a background, labelled with both, and a caption of each.
Objects are equally frequent and hard to tell, backgrounds are neither: what an unsupervised method prefers to see shows
in its dimensions. Other frequencies, backgrounds and pairs of both make the shifts of tools/robustness.py.
"""
import math

import numpy as np
import torch

OBJECTS = "circle triangle square hexagon star clover ring plus half-disc crescent".split()
BACKGROUNDS = {"sky": 0.40, "grass": 0.25, "sand": 0.15, "water": 0.12, "night": 0.08}
UNSEEN = dict.fromkeys(BACKGROUNDS, 0.0) | {"tiles": 0.5, "fog": 0.5}  # two that no training image has
PLACES = ["top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right"]
PHRASES = ["a {size} {colour} {object} on {background}, {place}",
           "{background} with a {colour} {object}, {size}, {place}",
           "{place} on {background} there is a {size} {colour} {object}",
           "{object}, {colour} and {size}, {place}, {background}"]


def draw(train=5000, test=1000, seed=0, frequencies=BACKGROUNDS, paired=0.0, turn=0) -> dict[str, np.ndarray]:
    """Arrays x_train, y_train, … of images (N, 3, 32, 32) uint8 of one of 10 objects `y`, equally many each, on a
    `background` of these frequencies, in the order above, and `captions`; from closed forms in float64, so that every
    machine has the same bytes. A share `paired` of the images of object y has background (y + turn) mod 5 instead."""
    n, random, f64 = train + test, torch.Generator().manual_seed(seed), torch.float64
    rand = lambda *shape: torch.rand(*shape, 1, 1, generator=random, dtype=f64)
    y = torch.arange(n) % len(OBJECTS)
    background = torch.multinomial(torch.tensor([*frequencies.values()], dtype=f64), n, True, generator=random)
    if paired:
        background = torch.where(rand(n).flatten() < paired, (y + turn) % len(BACKGROUNDS), background)
    v, u = torch.meshgrid(*[(torch.arange(32, dtype=f64) + 0.5) / 16 - 1] * 2, indexing="ij")  # pixel centres
    noise = torch.rand(n, 32, 32, generator=random, dtype=f64)
    colours = torch.tensor([[45, 65, 95], [25, 55, 15], [85, 75, 50], [10, 45, 60], [5, 5, 15],
                            [35, 22, 50], [70, 70, 72]], dtype=f64) / 100
    images = colours[background].view(n, 3, 1, 1).repeat(1, 1, 32, 32)
    for b, texture in enumerate([  # (32, 32), or (n_b, 32, 32) with noise; roughly in [-1, 1]
            lambda _: 0.7 * v + 0.6 * ((3 * u).sin() * (5 * v).sin()).clamp(min=0),  # haze to the horizon, soft clouds
            lambda noise: (22 * u + 3 * (4 * v).sin()).sin() * (0.4 + 0.6 * noise),  # blades
            lambda noise: 2.4 * noise - 1.2,  # grains
            lambda _: (14 * v + 1.5 * (3 * u).sin()).sin(),  # waves
            lambda noise: 4.5 * (noise > 0.96),  # stars
            lambda _: 2.0 * ((8 * v).frac().abs() < 0.2) + 0.8 * (6 * u + (8 * v).floor() * 1.5).sin(),
            lambda noise: (2 * u).cos() * (3 * v).cos() + 0.3 * noise]):  # tiles above, fog here
        images[background == b] += 0.22 * texture(noise[background == b]).unsqueeze(-3)
    size, angle = 0.7 + 0.22 * rand(n), 2 * math.pi * rand(n)
    cx, cy = (2 * rand(n) - 1) * (1.05 - size), (2 * rand(n) - 1) * (1.05 - size)
    fill = torch.tensor([0.65, 0.15, 0.15], dtype=f64).view(3, 1, 1) + 0.27 * rand(n, 3)  # reds
    px, py = (u - cx) / size, (v - cy) / size
    px, py = px * angle.cos() + py * angle.sin(), py * angle.cos() - px * angle.sin()
    def polygon(sides):  # outward distance to a regular polygon of circumradius 1
        wedge = math.pi / sides
        return lambda x, y, r, phi: r * (torch.remainder(phi, 2 * wedge) - wedge).cos() - math.cos(wedge)
    def star(x, y, r, phi):  # five tips at radius 1, valleys at 0.45
        t = (torch.remainder(phi + math.pi / 5, 2 * math.pi / 5) - math.pi / 5).abs()
        ax, ay = 0.45 * math.cos(math.pi / 5) - 1, 0.45 * math.sin(math.pi / 5)
        return ((r * t.cos() - 1) * ay - r * t.sin() * ax) / math.hypot(ax, ay)
    for c, outline in enumerate([  # negative inside, in units of the object's size; in the order of OBJECTS
            lambda x, y, r, phi: r - 0.9, polygon(3), polygon(4), polygon(6), star,
            lambda x, y, r, phi: r - 0.6 - 0.4 * (4 * phi).cos(),
            lambda x, y, r, phi: (r - 0.7).abs() - 0.22,
            lambda x, y, r, phi: torch.maximum(x.abs().minimum(y.abs()) - 0.3, x.abs().maximum(y.abs()) - 0.95),
            lambda x, y, r, phi: torch.maximum(r - 1, y),
            lambda x, y, r, phi: torch.maximum(r - 1, 0.8 - ((x - 0.5) ** 2 + y**2).sqrt())]):
        i = (y == c).nonzero()[:, 0]
        distance = 16 * size[i] * outline(px[i], py[i], (px[i]**2 + py[i]**2).sqrt(), torch.atan2(py[i], px[i]))
        inside = (0.5 - distance).clamp(0, 1)[:, None]  # in pixels, anti-aliased over one
        images[i] = images[i] * (1 - inside) + fill[i] * inside
    phrase, (_, green, blue) = torch.randint(len(PHRASES), (n,), generator=random), fill[..., 0, 0].T
    third = lambda x: 1 + (x / 0.2).round().clamp(-1, 1).long().flatten()  # 0, 1, 2 with borders at −0.1 and 0.1
    numbers = zip((size.flatten() > 0.81).int(), third(blue - green), y, background, 3 * third(cy) + third(cx), phrase)
    captions = [PHRASES[i].format(size=["small", "large"][s], colour=["orange", "crimson", "pink"][c],
                                  object=OBJECTS[o], background=[*frequencies][b], place=PLACES[p])
                for s, c, o, b, p, i in numbers]
    parts = {"x": (images.clamp(0, 1) * 255 + 0.5).to(torch.uint8).numpy(), "y": y.numpy(),
             "background": background.numpy(), "captions": np.array(captions)}
    split = {"train": slice(train), "test": slice(train, None)}
    return {f"{key}_{part}": x[rows] for key, x in parts.items() for part, rows in split.items()}
