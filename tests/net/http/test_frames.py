"""Names and numbers of HTTP/2, held against those of the h2 library."""

from __future__ import annotations

import h2.errors
from h2.settings import SettingCodes

from poot.net.http.frames import ErrorCode, Setting


def test_names_and_numbers_are_those_of_h2() -> None:
    assert {code.name: code.value for code in ErrorCode} == {code.name: code.value for code in h2.errors.ErrorCodes}
    for setting in Setting:
        assert int(SettingCodes[setting.name]) == int(setting)
