"""`python -m sidecar.settings > docs/reference/settings.md` writes the reference page anew."""

import click

from sidecar.settings.show import reference_page

click.echo(reference_page(), nl=False)
