"""The idea of NCL as a picture: a rotation of dense embeddings changes nothing that the loss sees.

    python studies/lesson/idea.py      assets/lesson-idea.png

Drawn is the unit sphere in three dimensions, seen along (1, 1, 1). From there the three axes are
120° apart, and a rotation about the line of sight turns the picture. The points are made up.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
plt.style.use(ROOT / "studies" / "pictures.mplstyle")

CLASSES = {"sky": "#3f7fc4", "grass": "#3d8f57", "sand": "#d08a2e"}
NAMES = [(0, 1.24), (-1.2, -0.35), (1.2, -0.35)]  # where they stand before a turn
INK = plt.rcParams["text.color"]
POINTS = 40  # of each class
NOISE = 0.17  # standard deviation of an entry that is not the class's own
TURN = -48  # degrees, from an axis to the cloud that a rotation makes of its class
OTHER_AXES = 28  # degrees, from the left panel's axes to others


# ----------------------------------------------------------------------------------- the geometry
def cloud(axis: int, draw: np.random.Generator, rectified: bool) -> np.ndarray:
    """Embeddings (POINTS, 3) of a class, of norm 1, near an axis.

    rectified: none is negative, and about half of the two smaller entries are 0.
    """
    z = NOISE * draw.standard_normal((POINTS, 3))
    z[:, axis] += 1
    if rectified:
        z = z.clip(min=0)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def seen(z: np.ndarray) -> np.ndarray:
    """Points (n, 3) as places (n, 2) in the picture, seen along (1, 1, 1); axis 0 is up."""
    right = np.array([0, -1, 1]) / 2**0.5
    up = np.array([2, -1, -1]) / 6**0.5
    return z @ np.stack([right, up], axis=1)


def clouds(rectified: bool) -> dict[str, np.ndarray]:
    """Where the classes' embeddings (POINTS, 2) are seen."""
    draw = np.random.default_rng(0)
    places = {}
    for axis, name in enumerate(CLASSES):
        places[name] = seen(cloud(axis, draw, rectified))
    return places


def turned(places: np.ndarray, degrees: float) -> np.ndarray:
    """Places (n, 2), turned to the left about the middle of the picture."""
    angle = np.deg2rad(degrees)
    left = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return places @ left


def orthant_edge() -> np.ndarray:
    """The border (n, 2) of the sphere's non-negative part: three arcs, from axis to axis."""
    angle = np.linspace(0, np.pi / 2, 50)
    arcs = []
    for axis in range(3):
        arc = np.zeros((50, 3))
        arc[:, axis] = np.cos(angle)
        arc[:, (axis + 1) % 3] = np.sin(angle)
        arcs.append(arc)
    return seen(np.concatenate(arcs))


# ------------------------------------------------------------------------------------ the drawing
def draw_sphere(panel) -> None:
    """The outline of the sphere."""
    angle = np.linspace(0, 2 * np.pi, 200)
    panel.plot(np.cos(angle), np.sin(angle), color=INK, alpha=0.3, linewidth=1.5)


def draw_axes(panel, degrees: float, dashed: bool) -> None:
    """Three arrows, turned by so many degrees."""
    tips = turned(1.5 * seen(np.eye(3)), degrees)
    style = dict(arrowstyle="-|>", color=INK, linewidth=1.3, shrinkA=0, shrinkB=0)
    if dashed:
        style |= dict(alpha=0.7, linestyle=(0, (4, 3)))
    for tip in tips:
        panel.annotate("", tip, (0, 0), arrowprops=style, zorder=3)
    if not dashed:
        for k, (x, y) in enumerate(1.09 * tips):
            name = f"$z_{k + 1}$"
            panel.text(x, y, name, fontsize=12, ha="center", va="center")


def draw_turn(panel, first: float, last: float, radius: float) -> None:
    """A curved arrow about the middle, from one angle to another in degrees."""
    angle = np.deg2rad(np.linspace(first, last, 40))
    x = radius * np.cos(angle)
    y = radius * np.sin(angle)
    panel.plot(x[:-2], y[:-2], color=INK, alpha=0.7, linewidth=1.2)
    style = dict(arrowstyle="-|>", color=INK, alpha=0.7, linewidth=1.2, shrinkA=0, shrinkB=0)
    panel.annotate("", (x[-1], y[-1]), (x[-4], y[-4]), arrowprops=style)


def draw_cloud(panel, places: np.ndarray, colour: str, hollow: bool = False) -> None:
    """The points of a class; hollow ones are where a rotation would take them."""
    if hollow:
        style = dict(s=10, facecolors="none", edgecolors=colour, linewidths=0.7, alpha=0.6)
    else:
        style = dict(s=16, color=colour, linewidths=0, alpha=0.75)
    panel.scatter(*places.T, zorder=4, **style)


def draw_names(panel, degrees: float) -> None:
    """The classes' names, turned with their clouds."""
    places = turned(np.array(NAMES), degrees)
    for (name, colour), (x, y) in zip(CLASSES.items(), places):
        panel.text(x, y, name, color=colour, fontsize=11, ha="center", va="center")


def draw_dense(panel) -> None:
    """Dense embeddings: the classes anywhere, and two sets of axes."""
    draw_axes(panel, OTHER_AXES, dashed=True)
    draw_axes(panel, 0, dashed=False)
    draw_turn(panel, 90, 90 + OTHER_AXES, 0.5)
    for name, places in clouds(rectified=False).items():
        draw_cloud(panel, turned(places, TURN), CLASSES[name])
    draw_names(panel, TURN)
    panel.set_title("SimCLR: dense", fontsize=13)
    panel.text(0, -1.42, "any axes give the same cosines", fontsize=11, ha="center")


def draw_orthant(panel) -> None:
    """Non-negative embeddings: a class along each axis, and where a rotation would take them."""
    panel.fill(*orthant_edge().T, color="#d9b36c", alpha=0.15, zorder=0)
    panel.plot(*orthant_edge().T, color="#d9b36c", alpha=0.6, linewidth=1)
    draw_axes(panel, 0, dashed=False)
    for name, places in clouds(rectified=True).items():
        draw_cloud(panel, turned(places, TURN), CLASSES[name], hollow=True)
        draw_cloud(panel, places, CLASSES[name])
    panel.set_title("NCL: no entry below 0", fontsize=13)
    panel.text(0, -1.42, "a rotation leaves the orthant", fontsize=11, ha="center")


def draw(path: str | Path) -> None:
    """Both panels."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 4.2))
    draw_dense(left)
    draw_orthant(right)
    for panel in (left, right):
        draw_sphere(panel)
        panel.set(xlim=(-1.6, 1.6), ylim=(-1.5, 1.5), aspect="equal")
        panel.axis("off")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "assets" / "lesson-idea.png")
