"""SimSiam whole, and without what keeps it from collapsing."""

from records import table

WHOLE = "simsiam/shapes-simsiam"
NO_STOP = "simsiam/shapes-simsiam-no-stop-grad"
NO_PREDICTOR = "simsiam/shapes-simsiam-no-predictor"
ZERO_INIT = "simsiam/shapes-simsiam-zero-init"

ROWS = {
    "SimSiam": WHOLE,
    "`--no-stop-grad`": NO_STOP,
    "`--no-stop-grad`, 16 pixels, batches of 1,000": "simsiam/simsiam-16px-simsiam-no-stop-grad",
    "`--no-predictor`": NO_PREDICTOR,
    "`--no-stop-grad` − SimSiam": f"{NO_STOP} − {WHOLE}",
    "`--no-predictor` − SimSiam": f"{NO_PREDICTOR} − {WHOLE}",
    "`--zero-init-residual` − SimSiam": f"{ZERO_INIT} − {WHOLE}",
}
MORE = {"spread": ("spread", 2), "Corr.": ("corr", 3)}

collapse = table(ROWS, ["spread", "Corr.", "LP@1", "5-NN"], MORE)
