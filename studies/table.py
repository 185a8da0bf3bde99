"""The race of README.md."""

from records import table

race = table(
    {
        "built-in objects: `python ncl.py`": "dictionaries/fair-shapes-ncl",
        "CIFAR-10: `python ncl.py --dataset cifar10 --preset default --arch resnet8 --epochs 20"
        " --limit 10000`": "dictionaries/fair-cifar10-ncl",
        "CIFAR-100: `python ncl.py --dataset cifar100 --arch resnet8 --epochs 20 --warmup 1`": (
            "dictionaries/fair-cifar100-ncl"
        ),
    },
    ["LP@1 of z", "adj. less random directions", "AP less random directions"],
    {"AP less random directions": ("ap - head_ap", 1)},
)
