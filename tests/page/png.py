"""Reads the pictures that a browser makes: PNG of 8 bits a channel, not interlaced; the standard library only."""

import struct
import zlib


class Picture:
    """Pixels as (red, green, blue), by at(x, y)."""

    def __init__(self, data):
        if data[:8] != b"\x89PNG\r\n\x1a\n":
            raise ValueError("this is no PNG")
        packed, at = b"", 8
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + length]
            if kind == b"IHDR":
                self.width, self.height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            elif kind == b"IDAT":
                packed += body
            at += length + 12
        if depth != 8 or colours not in (2, 6) or interlaced:
            raise ValueError(f"PNG of {depth} bits, colour type {colours}, interlace {interlaced}")
        self.channels = 3 if colours == 2 else 4
        self.rows = list(self._rows(zlib.decompress(packed)))

    def _rows(self, raw):
        step, length = self.channels, self.width * self.channels
        above = bytearray(length)
        for start in range(0, len(raw), length + 1):
            row = bytearray(raw[start + 1:start + 1 + length])
            self._unfilter(raw[start], row, above, step)
            yield row
            above = row

    @staticmethod
    def _unfilter(kind, row, above, step):
        if kind == 1:
            for i in range(step, len(row)):
                row[i] = (row[i] + row[i - step]) & 255
        elif kind == 2:
            for i, up in enumerate(above):
                row[i] = (row[i] + up) & 255
        elif kind == 3:
            for i, up in enumerate(above):
                row[i] = (row[i] + ((row[i - step] if i >= step else 0) + up) // 2) & 255
        elif kind == 4:
            for i, up in enumerate(above):
                left, corner = (row[i - step], above[i - step]) if i >= step else (0, 0)
                guess = left + up - corner
                nearest = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))
                row[i] = (row[i] + nearest[2]) & 255

    def at(self, x, y):
        start = int(x) * self.channels
        return tuple(self.rows[int(y)][start:start + 3])

    def counts(self):
        """How many pixels each colour has."""
        found = {}
        for row in self.rows:
            for start in range(0, len(row), self.channels):
                colour = tuple(row[start:start + 3])
                found[colour] = found.get(colour, 0) + 1
        return found
