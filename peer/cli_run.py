"""``murmur run``: make, show, sign and verify manifests."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, show, sign and verify manifests.")
