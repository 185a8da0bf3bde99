"""NCE beside cross-entropy, and MMNCL beside CLIP."""

from records import table

SHAPES = "labels-captions/shapes-"
CIFAR = "labels-captions/cifar10-cpu-"

labels = table(
    {
        "projector, built-in data": f"{SHAPES}nce-mlp − {SHAPES}ce-mlp",
        "projector, CIFAR-10": f"{CIFAR}nce-mlp − {CIFAR}ce-mlp",
        "class weights ≥ 0, too, built-in data": f"{SHAPES}nce-mlp-weights − {SHAPES}ce-mlp",
        "class weights ≥ 0, too, CIFAR-10": f"{CIFAR}nce-mlp-weights − {CIFAR}ce-mlp",
        "no projector, built-in data": f"{SHAPES}nce − {SHAPES}ce",
        "no projector, CIFAR-10": f"{CIFAR}nce − {CIFAR}ce",
    },
    ["top-1", "Cons.", "Act."],
    {"top-1": ("top1", 1)},
)
labels = labels.rename(columns={"": "NCE − cross-entropy"})

HEADINGS = {
    "R@1": ("text_r1", 1),
    "nameable, %": ("nameable", 1),
    "nameable": ("nameable * live_dims / 100", 0),
    "by 20 images, %": ("nameable_top", 1),
    "by 20 images": ("nameable_top * live_dims / 100", 0),
}
captions = table(
    {
        "MMNCL, τ = 0.1": f"{SHAPES}mmncl",
        "CLIP, τ = 0.1": f"{SHAPES}clip",
        "MMNCL − CLIP, τ = 0.1": f"{SHAPES}mmncl − {SHAPES}clip",
        "MMNCL, τ = 0.05": f"{SHAPES}mmncl-tau-0.05",
        "CLIP, τ = 0.05": f"{SHAPES}clip-tau-0.05",
        "MMNCL − CLIP, τ = 0.05": f"{SHAPES}mmncl-tau-0.05 − {SHAPES}clip-tau-0.05",
    },
    ["live", *HEADINGS],
    HEADINGS,
)
captions = captions.rename(columns={"": "built-in data"})
