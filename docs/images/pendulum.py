"""The pictures of docs/results/pendulum.md: `python docs/images/pendulum.py` trains both pendulums."""

from pathlib import Path

from PIL import Image

from shoal.cli.main import main

HERE = Path(__file__).parent
CONFIGS = HERE.parent.parent / "examples" / "configs"
SEED = "13"  # an episode that begins hanging down

for name in ("dense", "sparse"):
    run = Path("runs") / name
    main(["train", "--config", str(CONFIGS / f"pendulum_{name}.yaml"), "--out", str(run)])
    main(["eval", str(run), "--episodes", "100"])
    main(["plot", str(run), "--seed", SEED])
    main(["play", str(run), "--seed", SEED, "--gif", str(HERE / f"pendulum_{name}.gif")])
    for figure in ("returns", "losses", "trajectory", "state_space"):
        with Image.open(run / "plots" / f"{figure}.png") as picture:
            small = picture.convert("RGB").resize((picture.width * 2 // 3, picture.height * 2 // 3))
        small.quantize(256).save(HERE / f"pendulum_{name}_{figure}.png", optimize=True)
