"""Fields of science by account, as a site keeps them: a CSV file of two columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from malletrain.domain.errors import InvalidInput

#: The field of accounts that the file does not name.
UNLISTED = "unlisted"
_COLUMNS = ["account", "field"]


def read_fields(text: str, where: str) -> Mapping[str, str]:
    """The field of each account, from CSV with the columns `account` and `field`.

    Args:
        text: the file's content.
        where: its name, for errors.

    Raises:
        InvalidInput: a line is not two cells, or names an account again; with file and line.
    """
    found: dict[str, str] = {}
    reader = csv.reader(io.StringIO(text))
    try:
        for cells in reader:
            line = [cell.strip() for cell in cells]
            if not any(line) or (reader.line_num == 1 and [cell.lower() for cell in line] == _COLUMNS):
                continue
            place = f"{where}:{reader.line_num}"
            if len(line) != 2 or not all(line):
                raise InvalidInput(place, "is not an account and its field, such as bio,Life sciences")
            if line[0] in found:
                raise InvalidInput(place, f"account {line[0]!r} has a field already: {found[line[0]]!r}")
            found[line[0]] = line[1]
    except csv.Error as error:
        raise InvalidInput(f"{where}:{reader.line_num}", f"is not CSV: {error}") from error
    return found
