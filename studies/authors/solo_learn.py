"""Two of SparseHead's bases by solo-learn: main_pretrain.py of a clone, with our ResNet-8.

    git clone https://github.com/vturrisi/solo-learn ../solo-learn
    python studies/authors/solo_learn.py ../solo-learn barlow --limit 5000 --seed 1
    python studies/authors/solo_learn.py ../solo-learn byol --limit 5000 --seed 1
    python studies/authors/solo_learn.py ../solo-learn losses    six losses on the same embeddings

SparseHead's authors published no code; "theirs" here is solo-learn's, the more widely used program
for its bases. Theirs are loss, views, batches, schedule, target network and training loop; ours are
the network's layers, the images as arrays, and all settings, which words_for() writes as their
arguments. What is measured, and what a run folder has, is as in theirs.py.

It needs Lightning in the version of their requirements.txt, in an environment of its own:

    pip install -r requirements-dev.txt
    pip install --no-deps lightning==2.1.2 lightning-utilities==0.15.3 torchmetrics==0.11.4 \
        hydra-core==1.3.2 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 setuptools==80.9.0 timm

What we change: Barlow Twins' projector has three layers there, and gets our two. What differs:
1. Their views are PIL's on bytes, and are flipped last; ours are floats.
2. Their inputs are standardised by CIFAR-100's channels.
3. Their warm-up begins at 3e-5 and is at the peak after one step fewer.
4. Their BYOL has the cosine as it is; in ours norms below 0.01 count as 0.01.
5. They train a linear classifier of h beside it, without effect on the rest.
With these arguments both losses equal ours: scale_loss = 1 (its default: 0.024) and lamb = 0.005
(0.0051) for Barlow Twins; BYOL's momentum rises from 0.99 to 1 along half a cosine in both.
"""

import functools
import importlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import common  # noqa: E402
import sparsehead  # noqa: E402

import theirs  # noqa: E402
import torch  # noqa: E402

BASES = "barlow", "byol"
ADDRESS = "https://github.com/vturrisi/solo-learn"
# Of the settings of sparsehead.py those that CIFAR's preset has otherwise: their program has no
# other order of the views, and no other schedule with a warm-up.
OURS = "--sparse-weight 0 --batch-size 256 --schedule cosine --order crop-colour"

# -------------------------------------------------------------------------- words of their program
EVERY_RUN = (
    "wandb.enabled=False checkpoint.enabled=False auto_resume.enabled=False strategy=auto "
    "data.dataset=cifar100 data.num_workers=0 augmentations=ours optimizer.name=adam "
    "~optimizer.kwargs"  # LARS's
)


def words_for(s) -> list[str]:
    """What is typed after main_pretrain.py for our settings."""
    words = f"--config-path scripts/pretrain/cifar --config-name {s.base}.yaml {EVERY_RUN}"
    words += f" max_epochs={s.epochs} +scheduler.warmup_epochs={s.warmup:g} +seed={s.seed}"
    words += f" optimizer.batch_size={s.batch_size} optimizer.lr={s.lr}"
    words += f" optimizer.weight_decay={s.weight_decay}"
    words += f" method_kwargs.proj_hidden_dim={s.head_hidden}"
    words += f" method_kwargs.proj_output_dim={s.head_out}"
    if s.base == "barlow":
        words += " method_kwargs.scale_loss=1 +method_kwargs.lamb=0.005"
    else:
        words += f" method_kwargs.pred_hidden_dim={s.head_hidden} momentum.base_tau={s.momentum}"
    return words.split()


def views_for(s) -> list[dict]:
    """Their configuration `augmentations` for our settings: two views of one kind."""
    jitter = dict(brightness=s.jitter, contrast=s.jitter, saturation=s.jitter, hue=s.jitter / 4)
    view = dict(crop_size=s.image_size, num_crops=2, horizontal_flip=dict(prob=0.5))
    view["rrc"] = dict(enabled=True, crop_min_scale=s.min_scale, crop_max_scale=1.0)
    view["color_jitter"] = dict(prob=0.8, **jitter)
    view["grayscale"] = dict(prob=s.gray)
    view["gaussian_blur"] = dict(prob=s.blur)
    return [view | dict(solarization=dict(prob=0.0), equalization=dict(prob=0.0))]


# --------------------------------------------------------------------------------------- the bridge
def loss_of(_, logged: dict) -> dict[str, float]:
    """The loss of an epoch, of what their model has logged."""
    names = "train_barlow_loss_epoch", "train_neg_cos_sim_epoch"
    (loss,) = [logged[name].item() for name in names if name in logged]
    return dict(loss=loss)


def bridge(s, data: common.Data, trained: list) -> None:
    """Put ours into main_pretrain.py, with our views' settings and our head for Barlow Twins."""
    theirs.put_ours("lightning.pytorch", data, trained, loss_of)
    store = importlib.import_module("hydra.core.config_store").ConfigStore.instance()
    store.store("ours", views_for(s), group="augmentations")
    methods = importlib.import_module("solo.methods").METHODS

    class BarlowTwins(methods["barlow_twins"]):
        def __init__(self, cfg):
            super().__init__(cfg)
            d = self.features_dim
            self.projector = sparsehead.batch_norm_head("mlp", d, s.head_hidden, s.head_out)

    methods["barlow_twins"] = BarlowTwins


# --------------------------------------------------------------------------------------- the losses
def both_losses(z1, z2, prototypes) -> dict:
    """A loss's name: our value and theirs, of embeddings z1, z2 (N, K) and prototypes (P, K)."""
    their = importlib.import_module("solo.losses")
    Whitening = importlib.import_module("solo.utils.whitening").Whitening2d
    Sinkhorn = importlib.import_module("solo.utils.sinkhorn_knopp").SinkhornKnopp
    normalize = torch.nn.functional.normalize
    images = torch.arange(len(z1)).repeat(2)
    whiten = Whitening(z1.shape[1])
    scores = [normalize(z) @ normalize(prototypes).T for z in (z1, z2)]
    assignments = [Sinkhorn()(score) for score in scores]
    return {
        "simclr": (
            sparsehead.nt_xent(z1, z2, 0.5),
            their.simclr_loss_func(torch.cat([z1, z2]), images, 0.5),
        ),
        "byol": (sparsehead.byol_loss(z1, z2), their.byol_loss_func(z1, z2)),
        "barlow": (sparsehead.barlow_loss(z1, z2), their.barlow_loss_func(z1, z2, 0.005, 1)),
        # Of the two views' hinges ours has the mean, as VICReg's code, theirs the sum.
        "vicreg, their variance weight 12.5": (
            sparsehead.vicreg_loss(z1, z2),
            their.vicreg_loss_func(z1, z2, 25, 12.5, 1),
        ),
        # Theirs has no gradient for the second view.
        "wmse, z2 constant": (
            sparsehead.wmse_loss(z1, z2.detach(), len(z1)),
            their.wmse_loss_func(whiten(z1), whiten(z2)),
        ),
        "swav": (
            sparsehead.swav_loss(z1, z2, prototypes, 0.1),
            their.swav_loss_func(scores, assignments, 0.1),
        ),
    }


def compare_losses(clone: Path, out: Path) -> None:
    """Write results.json: of each loss both values, and how far the gradients are apart.

    That is ‖ours − theirs‖ / ‖ours‖ of the gradients for z1 and z2.
    """
    about = dict(method="losses", authors_commit=theirs.commit_of(clone), out=str(out))
    common.new_folder(out, about, "cpu")
    theirs.find_program(clone)
    torch.manual_seed(0)
    z1 = torch.randn(256, 64)
    z2 = z1 + torch.randn(256, 64)
    prototypes = torch.randn(512, 64)
    z1.requires_grad_()
    z2.requires_grad_()
    found = []
    for name, values in both_losses(z1, z2, prototypes).items():
        gradients = []
        for value in values:
            of_views = torch.autograd.grad(value, [z1, z2], allow_unused=True, retain_graph=True)
            gradients.append(
                torch.cat([torch.zeros_like(z1) if g is None else g for g in of_views])
            )
        ours, other = gradients
        apart = ((ours - other).norm() / ours.norm()).item()
        ours, other = (value.item() for value in values)
        row = dict(loss=name, ours=ours, theirs=other, gradients_apart=apart)
        found.append(row)
        print(row, flush=True)
    with common.replacing(out / "results.json") as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")


# -------------------------------------------------------------------------------------- the program
def parser():
    return theirs.parser("solo_learn", __doc__, [*BASES, "losses"], 10)


def flags_of(args) -> list[str]:
    """The flags of sparsehead.py with the settings that both programs get."""
    return [*theirs.flags_of(args), *OURS.split(), "--base", args.method]


def main(argv=None):
    args = parser().parse_args(argv)
    clone, out = theirs.checked(args, "solo_learn", ADDRESS)
    if args.method == "losses":
        return compare_losses(clone, out)
    settings = sparsehead.parser(args.method).parse(flags_of(args))
    data = common.Data(settings)
    words = words_for(settings)
    put = functools.partial(bridge, settings, data)
    trained = theirs.run_their_program(clone, words, put)
    theirs.measure_and_write(out, clone, words, settings, data, trained)


if __name__ == "__main__":
    common.launch(main)
